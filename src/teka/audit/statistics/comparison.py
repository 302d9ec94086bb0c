"""Two models over the same images: every difference that an audit gives of one mode."""

from collections.abc import Mapping
from dataclasses import dataclass

from teka.audit.movement import Movement
from teka.audit.statistics.difference import Difference, DifferenceCurve

COMPARED_CURVES = ("accuracy", "agreement")
COMPARED_NUMBERS = (
    "accuracy",
    "worst_shift_accuracy",
    "consistency",
    "probability_change",
    "divergence",
    "mean_error",
)


@dataclass(frozen=True)
class Comparison:
    """The first model less the second, over the same images and shifts; what is not defined for both is left out.

    Args:
        movement: How the images were moved.
        num_images: Number of images N.
        shifts: The shifts at which both models were evaluated with every image.
        curves: Of `COMPARED_CURVES`, the difference at each shift.
        numbers: Of `COMPARED_NUMBERS`, the differences of what `Metrics` describes, all over `shifts`.
        confidence: Confidence of the intervals.
    """

    movement: Movement
    num_images: int
    shifts: tuple[tuple[int | float, ...], ...]
    curves: dict[str, DifferenceCurve]
    numbers: dict[str, Difference]
    confidence: float

    def to_dict(self) -> dict[str, object]:
        """The differences, ready for JSON."""
        return {
            "movement": self.movement.to_dict(),
            "num_images": self.num_images,
            "shifts": [list(shift) for shift in self.shifts],
            "curves": {name: curve.to_dict() for name, curve in self.curves.items()},
            "numbers": {name: number.to_dict() for name, number in self.numbers.items()},
            "confidence": self.confidence,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, object]) -> "Comparison":
        """What `to_dict` wrote."""
        fields = dict(content)
        fields["movement"] = Movement.from_dict(fields["movement"])  # pyright: ignore[reportArgumentType]
        fields["shifts"] = tuple(map(tuple, fields["shifts"]))  # pyright: ignore[reportArgumentType]
        for name, kind in (("curves", DifferenceCurve), ("numbers", Difference)):
            made = {key: kind.from_dict(value) for key, value in fields[name].items()}  # pyright: ignore
            fields[name] = made
        return cls(**fields)  # pyright: ignore[reportArgumentType]
