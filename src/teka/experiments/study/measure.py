"""What is measured of every model of a study."""

from dataclasses import dataclass

from teka.audit import TRANSLATION_MODES
from teka.errors import unknown_name, wrong_value

WEIGHTS = ("last", "best")


@dataclass(frozen=True)
class Measure:
    """What is measured of every trained model.

    Args:
        images: Number of test images, drawn once with a fixed seed; None for all.
        shifted_images: Number of these that are shifted, the first ones; None for all.
        shifts: The shifts (dy, dx); (0, 0) is added where it is missing.
        mode: What happens at the edge, a mode of `teka.audit.translate`. In mode "lossless" those images alone are
            shifted that can be rolled by every shift with only background wrapping: all their blank margins, as
            `teka.data.lossless_selection` counts them, are wide enough. Of photographs there may be none.
        classes: Classes whose accuracy at every shift is kept besides that of all.
        weights: Which weights are measured: "last", those after the last step, or "best", those of the epoch with the
            highest validation accuracy.
        curve_points: Points of the learning curve, at equal distances in steps; a run with a patience has one after
            every epoch.

    Raises:
        ValueError: A number below 1, a class below 0, an unknown mode or unknown weights.
    """

    images: int | None = None
    shifted_images: int | None = None
    shifts: tuple[tuple[int, int], ...] = ((0, 0),)
    mode: str = "circular"
    classes: tuple[int, ...] = ()
    weights: str = "last"
    curve_points: int = 8

    def __post_init__(self) -> None:
        for argument in ("images", "shifted_images", "curve_points"):
            value = getattr(self, argument)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise wrong_value(f"measure.{argument}", value, "a whole number of at least 1")
        # A canvas or a crop would ask for models of another size than the trained ones.
        modes = tuple(mode for mode in TRANSLATION_MODES if mode not in ("canvas", "crop"))
        if self.mode not in modes:
            raise unknown_name("measure.mode", self.mode, modes)
        if self.weights not in WEIGHTS:
            raise unknown_name("measure.weights", self.weights, WEIGHTS)
        for label in self.classes:
            if not isinstance(label, int) or label < 0:
                raise wrong_value("measure.classes", list(self.classes), "whole numbers of at least 0")
