"""A number with its interval."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Estimate:
    """A number with its interval.

    Args:
        value: The number.
        lower: Lower end of the interval.
        upper: Upper end.
        confidence: Its confidence, within (0, 1).
        method: How it was made: "wilson"; "wilson, an image one trial", where resamples would hardly differ; "bootstrap
            over images"; "bootstrap over seeds and images"; "exact, simultaneous over shifts" of a lowest share, and
            "bootstrap over images, simultaneous over shifts" of a highest error; or "none, …" with the reason, where
            both ends are the value.
    """

    value: float
    lower: float
    upper: float
    confidence: float
    method: str

    def to_dict(self) -> dict[str, object]:
        """The fields, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, object]) -> "Estimate":
        """What `to_dict` wrote."""
        return cls(**content)  # pyright: ignore[reportArgumentType]
