"""Chaman and Dokmanić 2021: two random shifts of an image, circular and zero-padded, and whether they agree."""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from teka.audit.movement import translate
from teka.audit.presets.mean_share import mean_share
from teka.audit.presets.preset_result import PresetResult
from teka.audit.presets.random_pairs import Place, pair_agreement, whole_numbers
from teka.errors import wrong_value

SMALL, SHIFT_OF_SMALL, SHIFT = 32, 3, 32
PROCEDURE = (
    "Two shifts drawn from −m … m − 1 along each axis, one pair for all images of a batch; m = 3 for images to 32 "
    "pixels, 32 for larger ones; share of images answered alike, rolled round the edges, and with zeros coming in."
)
SOURCE = (
    "Chaman and Dokmanić 2021, Truly Shift-Invariant Convolutional Neural Networks, §5; validate and "
    "evaluate_random_crop in github.com/achaman2/truly_shift_invariant_cnns"
)


def chaman2021(
    function: Callable[[Tensor], object],
    images: Float[Tensor, "images channels height width"],
    labels: Int[Tensor, " images"] | None = None,
    *,
    batch_size: int = 256,
    seed: int = 0,
    confidence: float = 0.95,
    device: torch.device | str | None = None,
) -> PresetResult:
    """Consistency of two random shifts: P[argmax f(T_s x) = argmax f(T_s' x)], circular and zero-padded.

    The shifts are those that the authors' code draws after `numpy.random.seed(seed)` with the same batch size, for
    each of the two from the start. What comes in is 0, in the values that the images have here; the authors' images
    were normalised before. Their CIFAR-10 code averages over batches, their ImageNet code, as this, over images. The
    interval is over images, for the shifts that were drawn.

    Args:
        function: The classifier, images to logits (B, K).
        images: Images of at least 6 pixels, more than 32 for m = 32.
        labels: Not used.
        batch_size: Images that share two shifts; the authors' default for ImageNet is 256.
        seed: Seed of the shifts and of the bootstrap.
        confidence: Confidence of the intervals.
        device: Where the images are taken; None leaves them where they are.

    Raises:
        ValueError: Images that are smaller than the shift, or what `pair_agreement` refuses.
    """
    smallest = min(images.shape[2:])
    max_shift = SHIFT_OF_SMALL if smallest <= SMALL else SHIFT
    if smallest < max_shift:
        raise wrong_value("the images' size", tuple(images.shape[2:]), f"at least {max_shift} for preset 'chaman2021'")
    numbers = {}
    for name, move in (("circular", roll), ("zero-padded", partial(window, max_shift=max_shift))):
        agreement = pair_agreement(
            function,
            images,
            draw=whole_numbers(-max_shift, max_shift),
            move=move,
            passes=1,
            batch_size=batch_size,
            seed=seed,
            device=device,
        )
        share = mean_share(agreement[0].double(), confidence=confidence, seed=seed)
        numbers[f"consistency of two shifts, {name}"] = share
    counts = {"images": len(images), "largest shift": max_shift, "batch size": batch_size}
    return PresetResult("chaman2021", PROCEDURE, SOURCE, counts, numbers, {})


def roll(images: Tensor, place: Place) -> Tensor:
    """Images rolled by so many pixels along both axes.

    Args:
        images: Images (B, C, H, W).
        place: The shift.
    """
    return translate(images, place, mode="circular")


def window(images: Tensor, place: Place, *, max_shift: int) -> Tensor:
    """A window of the images' size, moved by so many pixels over the images padded with zeros: content moves back.

    Args:
        images: Images (B, C, H, W).
        place: The window's shift.
        max_shift: Zeros on each side.
    """
    height, width = images.shape[2:]
    padded = torch.nn.functional.pad(images, (max_shift,) * 4)
    top, left = (step + max_shift for step in place)
    return padded[:, :, top : top + height, left : left + width]
