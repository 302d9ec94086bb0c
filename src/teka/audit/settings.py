"""Settings of an audit."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from teka.audit.measure.measure_responses import Deadline
from teka.audit.model_output import OUTPUT_CHOICES
from teka.audit.movement import TRANSLATION_MODES, Background, Movement, Size, parse_background
from teka.audit.shifts import CheckedShifts, shifts_to_floats, shifts_to_tuples, square_shifts
from teka.audit.statistics.intervals import ImageBootstrap
from teka.checks import check_device, check_name, check_names, check_sizes
from teka.codec import encode
from teka.errors import wrong_value

# Step in pixels along the last axis, or one step for each axis. The modes "fourier" and "bilinear"
# accept fractions.
Steps = int | float | Sequence[int | float]
StepSet = Sequence[Steps] | np.ndarray | Tensor
# Optional stages of an audit.
PARTS = ("noise", "layers")
# Published protocols, which `teka.audit.protocols` implements.
PROTOCOL_NAMES = ("horn2021", "zhang2019", "chaman2021")
DEFAULT_MAX_SHIFT = 4  # in pixels


@dataclass(frozen=True)
class AuditSettings:
    """Settings of an audit, such as the shifts, the treatment of edges, and the optional stages.

    >>> from teka.audit import AuditSettings, square_shifts
    >>> settings = AuditSettings(shifts=square_shifts(2), modes=("circular", "crop"), parts=())
    >>> len(settings.shifts_for((28, 28))), settings.movement("crop", (28, 28)).crop_size
    (25, (24, 24))

    Args:
        shifts: Shifts as pairs (dy, dx), or as integers for horizontal shifts. By default, all
            shifts of at most 4 pixels along each axis. For small images, the limit is a quarter of
            their shorter side.
        modes: Modes of shifting, which differ in what happens at the edges of an image, see
            `teka.audit.translate`. The audit measures each mode separately.
        protocol: Published protocol to evaluate in addition: "horn2021", "zhang2019" or
            "chaman2021". By default none.
        parts: Optional stages: "noise" measures rounding errors by comparing single and double
            precision, and "layers" finds the layers that break equivariance.
        background: Value of the pixels that enter over an edge: one number, or one for each
            channel.
        canvas_size: Size of the canvas in mode "canvas". By default large enough for every shift.
        crop_size: Size of the window in mode "crop". By default small enough for every shift.
        output: Kind of the output: "auto", "logits", "probabilities", "classes", "multilabel",
            "multilabel_probabilities", "features", "dense", "segmentation" or "boxes", see
            `measure_responses`.
        stride: Number of image pixels per cell of a dense output, such as a segmentation map. By
            default, the size of the images divided by the size of the output.
        layers: Names of the modules to examine. By default all modules.
        seed: Seed of the bootstrap and of all other random choices.
        device: Device for the images. By default they stay on their device.
        batch_size: Number of images in one call of the model.
        budget_seconds: Time limit for the whole audit in seconds. A running call is not
            interrupted. By default there is no limit.
        confidence: Confidence level of intervals and bands.
        num_resamples: Number of resamples of the bootstrap.
        num_examples: Number of example images in the report.

    Raises:
        ValueError: A name is unknown, `modes` is empty or repeats a mode, or a number is out of
            range.
    """

    shifts: StepSet | None = None
    modes: Sequence[str] = ("circular",)
    protocol: str | None = None
    parts: Sequence[str] = PARTS
    background: Background = 0.0
    canvas_size: Size | None = None
    crop_size: Size | None = None
    output: str = "auto"
    stride: Size | None = None
    layers: Sequence[str] | None = None
    seed: int = 0
    device: torch.device | str | None = None
    batch_size: int = 256
    budget_seconds: float | int | None = None
    confidence: float = 0.95
    num_resamples: int = 1000
    num_examples: int = 8

    def __post_init__(self) -> None:
        modes = check_names("modes", self.modes, TRANSLATION_MODES)
        if not modes or len(set(modes)) < len(modes):
            raise wrong_value("modes", modes, "at least one mode, each once")
        if self.shifts is not None:
            shifts_to_floats("shifts", self.shifts)
        parse_background(self.background)
        if self.device is not None:
            check_device(self.device)
        if self.protocol is not None:
            check_name("protocol", self.protocol, PROTOCOL_NAMES)
        check_names("parts", self.parts, PARTS)
        check_name("output", self.output, OUTPUT_CHOICES)
        check_sizes({"batch_size": self.batch_size})
        check_sizes({"num_examples": self.num_examples}, least=0)
        ImageBootstrap(1, **self.interval_options)
        Deadline(self.budget_seconds)  # checks the number

    @property
    def interval_options(self) -> dict[str, Any]:
        """Options of `summarize` for confidence intervals: confidence, num_resamples and seed."""
        return {name: getattr(self, name) for name in ("confidence", "num_resamples", "seed")}

    def shifts_for(self, sizes: Sequence[int]) -> CheckedShifts:
        """Return all shifts to evaluate on images of the given size, including the zero shift."""
        if self.shifts is None:
            return square_shifts(min(DEFAULT_MAX_SHIFT, min(sizes) // 4), len(sizes))
        steps = [0.0, *shifts_to_floats("shifts", self.shifts)]
        return shifts_to_tuples("shifts", steps, len(sizes))

    def to_dict(self, sizes: Sequence[int]) -> dict[str, object]:
        """Convert the settings to JSON data, with the shifts for images of the given size."""
        device = self.device and str(self.device)
        return encode(replace(self, shifts=self.shifts_for(sizes), device=device))

    def largest_steps(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Return the longest step along each axis, rounded up to whole pixels.

        Args:
            sizes: Spatial sizes of the images, because the default shifts depend on them.
        """
        steps_by_axis = zip(*self.shifts_for(sizes), strict=True)
        return tuple([math.ceil(max(map(abs, steps))) for steps in steps_by_axis])

    def movement(self, mode: str, sizes: Sequence[int]) -> Movement:
        """Create the `Movement` object that shifts images of the given size in the given mode.

        If the size of the canvas or window is not set, it is chosen so that every shift fits.
        """
        if mode not in ("canvas", "crop"):
            return Movement(mode, self.background)
        argument = f"{mode}_size"
        size = getattr(self, argument)
        if size is None:
            factor = 2 if mode == "canvas" else -2
            sides = zip(sizes, self.largest_steps(sizes), strict=True)
            size = tuple(side + factor * step for side, step in sides)
        return Movement(mode, self.background, **{argument: size})
