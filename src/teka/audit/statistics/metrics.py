"""Every number that an audit gives of one mode."""

from collections.abc import Mapping
from dataclasses import dataclass

from teka.audit.movement import Movement
from teka.audit.statistics.estimate import Curve, Estimate

CURVES = ("accuracy", "loss", "agreement", "probability_change", "divergence", "error")
NUMBERS = (
    "accuracy",
    "minimum_accuracy",
    "worst_shift_accuracy",
    "consistency",
    "consistency_when_right",
    "flip_rate",
    "probability_change",
    "divergence",
    "mean_error",
    "maximum_error",
)


@dataclass(frozen=True)
class Metrics:
    """Every number that an audit gives of one mode; those that are not defined are left out.

    Args:
        movement: How the images were moved.
        output: "logits", "features" or "dense".
        num_images: Number of images N.
        shifts: The shifts at which every image was evaluated; of images, (dy, dx).
        skipped_shifts: Those at which not, because time ran out or a search had no need of them.
        curves: Of `CURVES`, the number at each shift: share right; mean cross-entropy in nats; share that is answered
            as unmoved; mean |p_s(c) − p_0(c)|; mean KL(p_0 ‖ p_s) in nats; ‖f(T_s x) − T_s f(x)‖ / ‖T_s f(x)‖, with
            norms over all images.
        numbers: Of `NUMBERS`: accuracy unmoved; lowest accuracy of a shift; share right at every shift; P[answer as
            unmoved] over images and shifts but zero; the same of images that are right unmoved; 1 − consistency; means
            over images and shifts but zero; error, mean over shifts but zero, and maximum. The share right at every
            shift speaks of the skipped ones too, where the answers at hand decide every image.
        confidence: Confidence of the intervals.
    """

    movement: Movement
    output: str
    num_images: int
    shifts: tuple[tuple[int | float, ...], ...]
    skipped_shifts: tuple[tuple[int | float, ...], ...]
    curves: dict[str, Curve]
    numbers: dict[str, Estimate]
    confidence: float

    def to_dict(self) -> dict[str, object]:
        """The numbers, ready for JSON."""
        return {
            "movement": self.movement.to_dict(),
            "output": self.output,
            "num_images": self.num_images,
            "shifts": [list(shift) for shift in self.shifts],
            "skipped_shifts": [list(shift) for shift in self.skipped_shifts],
            "curves": {name: curve.to_dict() for name, curve in self.curves.items()},
            "numbers": {name: number.to_dict() for name, number in self.numbers.items()},
            "confidence": self.confidence,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, object]) -> "Metrics":
        """What `to_dict` wrote."""
        fields = dict(content)
        fields["movement"] = Movement.from_dict(fields["movement"])  # pyright: ignore[reportArgumentType]
        for name in ("shifts", "skipped_shifts"):
            fields[name] = tuple(map(tuple, fields[name]))  # pyright: ignore[reportArgumentType]
        for name, kind in (("curves", Curve), ("numbers", Estimate)):
            made = {key: kind.from_dict(value) for key, value in fields[name].items()}  # pyright: ignore
            fields[name] = made
        return cls(**fields)  # pyright: ignore[reportArgumentType]
