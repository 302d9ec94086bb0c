"""Horn et al. 2021, Figure 1: the ones, and all classes beside them, moved along dx without loss."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from teka.audit.measure.measure_responses import measure_responses
from teka.audit.movement import Movement
from teka.audit.presets.mean_share import mean_share
from teka.audit.presets.preset_result import PresetResult
from teka.audit.statistics.summarize import summarize
from teka.data import lossless_selection
from teka.errors import wrong_shape, wrong_value

SIDE, MARGIN, CLASS = 32, 8, 1
PROCEDURE = (
    "Images of 32 × 32 of class 1 with at least 8 blank columns on both sides, the outermost not counted, are rolled "
    "by −8 … 8 columns; accuracy at each shift. Beside them all classes, chosen by the same margins."
)
SOURCE = "Horn et al. 2021, Translational Equivariance in Kernelizable Attention, Figure 1"


def horn2021(
    function: Callable[[Tensor], object],
    images: Float[Tensor, "images channels height width"],
    labels: Int[Tensor, " images"] | None,
    *,
    batch_size: int = 256,
    seed: int = 0,
    confidence: float = 0.95,
    device: torch.device | str | None = None,
) -> PresetResult:
    """Accuracy at 17 lossless shifts: 854 ones of MNIST's test images, 791 trousers of Fashion-MNIST's.

    The numbers are the mean over the shifts and the lowest of class 1 and of all classes. The paper's band about an
    accuracy p is √(p (1 − p)), the standard deviation of one image's answer; the intervals here are Wilson's.

    Args:
        function: The classifier, images to logits (B, K).
        images: The test images, 32 × 32, background 0.
        labels: Their classes.
        batch_size: Images for one call.
        seed: Seed of the bootstrap.
        confidence: Confidence of the intervals.
        device: Where the images are taken; None leaves them where they are.

    Raises:
        ValueError: No labels, images of another size, or none with such margins.
    """
    if labels is None:
        raise wrong_value("labels", None, "a class for each image, for preset 'horn2021'")
    if tuple(images.shape[2:]) != (SIDE, SIDE):
        raise wrong_shape("images", images.shape, f"(images, channels, {SIDE}, {SIDE}) for preset 'horn2021'")
    shifts = [(0, step) for step in range(-MARGIN, MARGIN + 1)]
    counts, numbers, metrics = {}, {}, {}
    for name, class_index in (("class 1", CLASS), ("all classes", None)):
        keep = lossless_selection(images, labels, class_index, MARGIN)
        counts[f"images, {name}"] = int(keep.sum())
        if not keep.any():
            raise wrong_value("images", f"none of {name} with margins of {MARGIN} columns", "at least one")
        responses = measure_responses(
            function,
            images[keep],
            shifts,
            Movement("lossless"),
            labels=labels[keep],
            output="logits",
            batch_size=batch_size,
            device=device,
        )
        found = summarize(responses, confidence=confidence, seed=seed)
        metrics[name] = found
        share = (responses.predictions == responses.labels).double().mean(dim=0)
        numbers[f"mean accuracy, {name}"] = mean_share(share, confidence=confidence, seed=seed)
        numbers[f"minimum accuracy, {name}"] = found.numbers["minimum_accuracy"]
    return PresetResult("horn2021", PROCEDURE, SOURCE, counts, numbers, metrics)
