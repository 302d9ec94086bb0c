"""The first layer that breaks, and where exactly."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

# Equivariance is lost within the image, at its edge, or between the cells of a grid.
BREAKS = ("interior", "edge", "aliasing")


@dataclass(frozen=True)
class LayerBreak:
    """The first layer, in the order of execution, whose error of one kind is above its limit.

    Args:
        kind: "interior", "edge" or "aliasing".
        name: Name of the innermost module in which it happens.
        module: Class of that module.
        error: The error, at the worst shift.
        limit: What it was compared with.
        has_interior: Whether some of its cells are out of reach of the edge of the image. Without any, what breaks
            within the image cannot be told from what comes of the edge, and the kind says which is likelier.
        between: Where it happens in the module's own code, not in a part of it: the last parts or inputs before and the
            first after. None where it happens within the module as a whole.
    """

    kind: str
    name: str
    module: str
    error: float
    limit: int | float
    has_interior: bool = True
    between: tuple[str, str] | None = None

    def to_dict(self) -> dict[str, object]:
        """The fields, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, object]) -> "LayerBreak":
        """What `to_dict` wrote, read back from JSON too."""
        fields = dict(content)
        between = fields.pop("between", None)
        return cls(**fields, between=None if between is None else tuple(between))  # pyright: ignore[reportArgumentType]
