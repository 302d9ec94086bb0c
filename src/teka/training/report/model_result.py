"""The result of one model trained with one seed."""

from collections.abc import Mapping
from dataclasses import dataclass

AXES = ("dx", "dy")
"""The shifts' axes: dx counts pixels to the right, dy pixels downwards, as `Grid` shifts."""


BUILT_IN = "built in"
"""Position and kernel of a model that is not made of such parts."""


@dataclass(frozen=True)
class ModelResult:
    """The result of one model trained with one seed.

    Args:
        name: The model's name; models that share it are the same model under different seeds.
        position: How it knows positions: "none", "absolute", the name of a relative kernel, or "built in" for a model
            that is not made of such parts.
        kernel: Its content kernel.
        backend: How its attention was evaluated.
        parameters: Number of trainable parameters.
        seed: Seed of the run.
        epochs: Epochs trained.
        seconds: Training time.
        accuracy_by_shift: For each axis, the share of test images classified right at each shift in pixels.
        worst_shift_accuracy: Share of test images classified right at every shift.
        minimum_accuracy: Lowest accuracy at any shift.
        interval_by_shift: For each axis and shift, the 95 % Wilson interval (low, high) of the accuracy, where known.
        test_images: Number of test images, where known.
    """

    name: str
    position: str
    kernel: str
    backend: str
    parameters: int
    seed: int
    epochs: float
    seconds: float
    accuracy_by_shift: Mapping[str, Mapping[int, float]]
    worst_shift_accuracy: float
    minimum_accuracy: float
    interval_by_shift: Mapping[str, Mapping[int, tuple[float, float]]] | None = None
    test_images: int | None = None
