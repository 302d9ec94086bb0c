"""Something about a model, its data or the settings that could make an audit mislead."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from teka.errors import unknown_name

SEVERITIES = ("invalidates", "limits", "note")


@dataclass(frozen=True)
class Trap:
    """Something that could make an audit mislead.

    Args:
        name: Its name, a few words that stay the same from audit to audit, such as "training mode".
        severity: "invalidates" (the numbers do not mean what they say), "limits" (they hold for less than one may
            think) or "note" (worth knowing).
        message: What was found and what to do, in plain words, with the numbers.

    Raises:
        ValueError: An unknown severity.
    """

    name: str
    severity: str
    message: str

    def __post_init__(self) -> None:
        if self.severity not in SEVERITIES:
            raise unknown_name("severity", self.severity, SEVERITIES)

    def to_dict(self) -> dict[str, object]:
        """The fields, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, object]) -> "Trap":
        """What `to_dict` wrote."""
        return cls(**content)  # pyright: ignore[reportArgumentType]
