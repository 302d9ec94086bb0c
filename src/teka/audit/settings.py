"""What an audit is asked to do."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from teka.audit.changes import CHANGES
from teka.audit.model_output import OUTPUT_CHOICES
from teka.audit.movement import TRANSLATION_MODES, Movement
from teka.audit.shifts import square_shifts
from teka.audit.statistics.estimate import BootstrapSettings
from teka.checks import check_name, check_sizes
from teka.codec import encode
from teka.errors import wrong_value

# Along the last axis, or one step for each; fractions in the sub-pixel modes.
Steps = int | float | Sequence[int | float]
StepSet = Sequence[Steps] | np.ndarray | Tensor
PARTS = ("noise", "layers", "derivative", "sensitivity")  # what an audit does beside the shifts themselves
MAX_SHIFT = 8


@dataclass(frozen=True)
class AuditSettings:
    """What an audit is asked to do.

    >>> from teka.audit import AuditSettings, square_shifts
    >>> settings = AuditSettings(shifts=square_shifts(2), modes=("circular", "crop"), parts=())
    >>> len(settings.shifts_for((28, 28))), settings.movement("crop", (28, 28)).crop_size
    (25, (24, 24))

    Args:
        shifts: The set of shifts; None for the square of ±8 pixels, less for images of fewer than 32.
        modes: Modes of the function `teka.audit.translate`, each measured for itself.
        changes: What to measure too, names of `teka.audit.changes.CHANGES`.
        preset: A procedure of the literature to add, a name of `teka.audit.procedures.PRESETS`, or None.
        parts: Which of `PARTS` to do.
        background: Value of the images' background: one, or one for each channel.
        canvas_size: Size of the canvas for mode `canvas`; None for the images' and room for every shift.
        crop_size: Size of the window for mode `crop`; None for the images' less room for every shift.
        output: "auto", or the kind of the model's output: "logits", "probabilities", "classes", "multilabel",
            "multilabel_probabilities", "features", "dense", "segmentation" or "boxes", of which `measure_responses`
            says more.
        stride: Pixels to a cell of dense outputs; None divides the sizes.
        layers: Names of the modules to look at; None for all.
        seed: Seed of the bootstrap and of the presets' draws.
        device: Where images are taken; None leaves them.
        batch_size: Images for one call.
        budget_seconds: Time for the whole audit; None for no limit. A call of the model that has begun is not ended.
        precision: Points of percent. So many images are taken, in random order, that half of the interval of the
            consistency, or of the mean IoU, is at most this; None takes all.
        confidence: Of intervals and bands.
        num_resamples: Resamples of the bootstrap.
        num_examples: Images to keep for the report.

    Raises:
        ValueError: An unknown name, no mode, the same mode twice, or a number that is too small.
    """

    shifts: StepSet | None = None
    modes: Sequence[str] = ("circular",)
    changes: Sequence[str] = ()
    preset: str | None = None
    parts: Sequence[str] = PARTS
    background: float | int | tuple[float | int, ...] = 0.0
    canvas_size: int | tuple[int, ...] | None = None
    crop_size: int | tuple[int, ...] | None = None
    output: str = "auto"
    stride: int | tuple[int, ...] | None = None
    layers: Sequence[str] | None = None
    seed: int = 0
    device: torch.device | str | None = None
    batch_size: int = 256
    budget_seconds: float | int | None = None
    precision: float | int | None = None
    confidence: float = 0.95
    num_resamples: int = 1000
    num_examples: int = 8

    def __post_init__(self) -> None:
        if not self.modes or len(set(self.modes)) < len(self.modes):
            raise wrong_value("modes", list(self.modes), "at least one mode, each once")
        for argument, names, known in (("modes", self.modes, TRANSLATION_MODES), ("changes", self.changes, CHANGES)):
            for name in names:
                check_name(argument, name, known)
        if self.preset is not None:
            from teka.audit.procedures import PRESETS  # which read these settings themselves

            check_name("preset", self.preset, PRESETS)
        for part in self.parts:
            check_name("parts", part, PARTS)
        check_name("output", self.output, OUTPUT_CHOICES)
        check_sizes({"batch_size": self.batch_size})
        check_sizes({"num_examples": self.num_examples}, least=0)
        BootstrapSettings(**self.intervals)
        if self.budget_seconds is not None and self.budget_seconds <= 0:
            raise wrong_value("budget_seconds", self.budget_seconds, "a positive number of seconds, or None")
        if self.precision is not None and not self.precision > 0:
            raise wrong_value("precision", self.precision, "a positive number of points, or None")

    @property
    def intervals(self) -> dict[str, Any]:
        """How numbers get their intervals, as `summarize` and its like take it."""
        return {name: getattr(self, name) for name in ("confidence", "num_resamples", "seed")}

    def shifts_for(self, sizes: Sequence[int]) -> tuple[tuple[int | float, ...], ...]:
        """The shifts of images of these spatial sizes, zero among them."""
        if self.shifts is None:
            return square_shifts(min(MAX_SHIFT, min(sizes) // 4), len(sizes))
        still = (0,) * (len(sizes) - 1)
        shifts = self.shifts.tolist() if isinstance(self.shifts, (np.ndarray, Tensor)) else self.shifts
        given = [tuple(one) if isinstance(one, Sequence) else (*still, one) for one in shifts]
        return tuple(dict.fromkeys([(0, *still), *given]))

    def to_dict(self, sizes: Sequence[int]) -> dict[str, object]:
        """What was asked for of images of a size, ready for JSON."""
        content = encode(replace(self, shifts=self.shifts_for(sizes)))
        return {**content, "device": None if self.device is None else str(self.device)}

    def reach(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """The longest step along each axis, in whole pixels."""
        shifts = self.shifts_for(sizes)
        wrong = [step for step in shifts if len(step) != len(sizes)]
        if wrong:
            raise wrong_value("shifts", wrong[0], f"one step for each of the {len(sizes)} axes")
        return tuple([math.ceil(max(map(abs, steps))) for steps in zip(*shifts, strict=True)])

    def movement(self, mode: str, sizes: Sequence[int]) -> Movement:
        """How images of these spatial sizes move in one of the modes."""
        reach = zip(sizes, self.reach(sizes), strict=True)
        canvas = self.canvas_size or tuple([side + 2 * step for side, step in reach]) if mode == "canvas" else None
        crop = self.crop_size or tuple([side - 2 * step for side, step in reach]) if mode == "crop" else None
        return Movement(mode, self.background, canvas, crop)
