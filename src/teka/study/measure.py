"""What is measured of every model of a study."""

from dataclasses import dataclass

from teka.audit import TRANSLATION_MODES
from teka.errors import unknown_name, wrong_value


@dataclass(frozen=True)
class Measure:
    """What is measured of every trained model.

    Args:
        images: Number of test images, drawn once with a fixed seed; None for all.
        shifted_images: Number of these that are shifted, the first ones; None for all.
        shifts: The shifts (dy, dx); (0, 0) is added where it is missing.
        mode: What happens at the edge, a mode of `teka.audit.translate`.
        curve_points: Points of the learning curve, at equal distances in steps.

    Raises:
        ValueError: A number below 1, or an unknown mode.
    """

    images: int | None = None
    shifted_images: int | None = None
    shifts: tuple[tuple[int, int], ...] = ((0, 0),)
    mode: str = "circular"
    curve_points: int = 8

    def __post_init__(self) -> None:
        for argument in ("images", "shifted_images", "curve_points"):
            value = getattr(self, argument)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise wrong_value(f"measure.{argument}", value, "a whole number of at least 1")
        # A canvas would ask for models of another size than the trained ones.
        modes = tuple(mode for mode in TRANSLATION_MODES if mode != "canvas")
        if self.mode not in modes:
            raise unknown_name("measure.mode", self.mode, modes)
