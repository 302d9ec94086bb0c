"""A number at every shift, with intervals for each shift alone and a band that holds at all of them together."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Curve:
    """A number at every shift.

    Args:
        values: The number at each shift, in the order of the shifts.
        lower: Lower ends of the intervals, each for its shift alone.
        upper: Upper ends.
        band_lower: Lower ends of the band that covers the whole curve with the same confidence.
        band_upper: Upper ends.
        method: How intervals and band were made.
    """

    values: tuple[float, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    band_lower: tuple[float, ...]
    band_upper: tuple[float, ...]
    method: str

    def to_dict(self) -> dict[str, object]:
        """The fields, ready for JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}

    @classmethod
    def from_dict(cls, content: Mapping[str, object]) -> "Curve":
        """What `to_dict` wrote."""
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in content.items()}
        return cls(**values)  # pyright: ignore[reportArgumentType]
