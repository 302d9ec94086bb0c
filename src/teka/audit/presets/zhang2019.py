"""Zhang 2019: two random crops of a larger image, and whether they are answered alike."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from teka.audit.presets.mean_share import mean_share
from teka.audit.presets.preset_result import PresetResult
from teka.audit.presets.random_pairs import Place, pair_agreement, whole_numbers
from teka.errors import wrong_shape

CANVAS, CROP, PASSES = 256, 224, 5
PROCEDURE = (
    "Images of 256 × 256; two crops of 224 × 224, their offsets drawn from 0 … 31 along each axis, one pair for all "
    "images of a batch; share of images answered alike, over 5 passes."
)
SOURCE = (
    "Zhang 2019, Making Convolutional Networks Shift-Invariant Again, §4.2; "
    "validate_shift in github.com/adobe/antialiased-cnns"
)


def zhang2019(
    function: Callable[[Tensor], object],
    images: Float[Tensor, "images channels height width"],
    labels: Int[Tensor, " images"] | None = None,
    *,
    batch_size: int = 256,
    seed: int = 0,
    confidence: float = 0.95,
    device: torch.device | str | None = None,
) -> PresetResult:
    """Consistency of two random crops: P[argmax f(crop_a x) = argmax f(crop_b x)].

    The offsets are those that the authors' code draws after `numpy.random.seed(seed)` with the same batch size. The
    interval is over images, for the offsets that were drawn.

    Args:
        function: The classifier, images of 224 × 224 to logits (B, K).
        images: Images of 256 × 256, as Resize(256) and CenterCrop(256) give them.
        labels: Not used.
        batch_size: Images that share two offsets; the authors' default is 256.
        seed: Seed of the offsets and of the bootstrap.
        confidence: Confidence of the interval.
        device: Where the images are taken; None leaves them where they are.

    Raises:
        ValueError: Images of another size, or what `pair_agreement` refuses.
    """
    if tuple(images.shape[2:]) != (CANVAS, CANVAS):
        raise wrong_shape("images", images.shape, f"(images, channels, {CANVAS}, {CANVAS}) for preset 'zhang2019'")
    agreement = pair_agreement(
        function,
        images,
        draw=whole_numbers(0, CANVAS - CROP),
        move=crop_at,
        passes=PASSES,
        batch_size=batch_size,
        seed=seed,
        device=device,
    )
    consistency = mean_share(agreement.double().mean(dim=0), confidence=confidence, seed=seed)
    counts = {"images": len(images), "passes": PASSES, "batch size": batch_size}
    return PresetResult("zhang2019", PROCEDURE, SOURCE, counts, {"consistency of two crops": consistency}, {})


def crop_at(images: Tensor, place: Place) -> Tensor:
    """The crop of 224 × 224 of which the upper left pixel lies there.

    Args:
        images: Images (B, C, 256, 256).
        place: Row and column.
    """
    top, left = place
    return images[:, :, top : top + CROP, left : left + CROP]
