"""A difference of two models, with its interval and its p-value: one number, or one at every shift."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from teka.audit.statistics.estimate import Curve


@dataclass(frozen=True)
class Difference:
    """A number of the first model less that of the second, over the same images.

    Args:
        value: The difference.
        lower: Lower end of its interval.
        upper: Upper end.
        confidence: Confidence of the interval, within (0, 1).
        p_value: Two-sided p-value that there is none.
        method: How the interval was made: "bonett-price", "bootstrap over images", "bonett-price, an image one trial"
            where resamples would hardly differ, or "none, …" with the reason, where both ends are the value.
        test: How the p-value was made: "exact mcnemar" or "sign flips of images".
    """

    value: float
    lower: float
    upper: float
    confidence: float
    p_value: float
    method: str
    test: str

    def to_dict(self) -> dict[str, object]:
        """The fields, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, object]) -> "Difference":
        """What `to_dict` wrote."""
        return cls(**content)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class DifferenceCurve:
    """A share of the first model less that of the second at every shift.

    Args:
        curve: The differences, intervals and band.
        p_values: Exact p-value of McNemar's test at each shift, for that shift alone.
        adjusted_p_values: The same, adjusted by Holm for the number of shifts.
    """

    curve: Curve
    p_values: tuple[float, ...]
    adjusted_p_values: tuple[float, ...]

    def to_dict(self) -> dict[str, object]:
        """The fields, ready for JSON."""
        return {
            "curve": self.curve.to_dict(),
            "p_values": list(self.p_values),
            "adjusted_p_values": list(self.adjusted_p_values),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, object]) -> "DifferenceCurve":
        """What `to_dict` wrote."""
        curve, p_values, adjusted = (content[name] for name in ("curve", "p_values", "adjusted_p_values"))
        return cls(Curve.from_dict(curve), tuple(p_values), tuple(adjusted))  # pyright: ignore[reportArgumentType]
