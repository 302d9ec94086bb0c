"""What was measured of all layers of a model, and which of them are to blame."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from teka.audit.layers.layer_break import LayerBreak
from teka.audit.layers.layer_finding import LayerFinding
from teka.audit.movement import Movement

# A module is left out of the biggest jumps if a part of it has at least this share of its own.
EXPLAINED_SHARE = 0.5


@dataclass(frozen=True)
class LayerFindings:
    """What was measured of all layers of a model, and which of them are to blame.

    Args:
        findings: The layers in the order in which they finished.
        first_break: Name of the first module that breaks within the image, or None.
        threshold: The error below which no layer breaks.
        absolute_embeddings: Names of parameters, buffers and modules that hold absolute positions; the module that owns
            a parameter is the name before its last dot.
        class_tokens: Names of parameters that hold class, distillation and register tokens.
        skipped: For each module that could not be compared, why.
        max_shift: The longest step along an axis, in pixels.
        breaks: The first break of each kind; `teka.audit.layers.layer_break.BREAKS` names the kinds.
        flattened: Names of modules that read a flattened map, each cell by its own weights.
        shifts: The shifts that were measured, without zero.
        movement: How the images were moved.
        num_images: Number of images that were measured.
        seen_size: Spatial size of what the model got.
    """

    findings: tuple[LayerFinding, ...]
    first_break: str | None
    threshold: int | float
    absolute_embeddings: tuple[str, ...]
    class_tokens: tuple[str, ...]
    skipped: dict[str, str]
    max_shift: int | float
    breaks: dict[str, LayerBreak] = field(default_factory=dict)
    flattened: tuple[str, ...] = ()
    shifts: tuple[tuple[int | float, ...], ...] = ()
    movement: Movement | None = None
    num_images: int = 0
    seen_size: tuple[int, ...] = ()

    def find(self, name: str) -> LayerFinding | None:
        """The finding of a layer by its name, or None."""
        return next((finding for finding in self.findings if finding.name == name), None)

    def biggest_jumps(self, count: int = 5) -> tuple[LayerFinding, ...]:
        """The layers that add most error, the most first; modules of which a part adds half as much are left out.

        Args:
            count: How many at most.
        """
        rising = [one for one in self.findings if one.added is not None and one.added > one.limit(self.threshold)]
        own = [one for one in rising if not any(_explains(part, one) for part in rising)]
        return tuple(sorted(own, key=lambda one: -(one.added or 0.0))[:count])

    def to_dict(self) -> dict[str, object]:
        """All fields, ready for JSON."""
        return {
            "findings": [finding.to_dict() for finding in self.findings],
            "first_break": self.first_break,
            "threshold": self.threshold,
            "absolute_embeddings": list(self.absolute_embeddings),
            "class_tokens": list(self.class_tokens),
            "skipped": dict(self.skipped),
            "max_shift": self.max_shift,
            "breaks": {kind: one.to_dict() for kind, one in self.breaks.items()},
            "flattened": list(self.flattened),
            "shifts": [list(shift) for shift in self.shifts],
            "movement": None if self.movement is None else self.movement.to_dict(),
            "num_images": self.num_images,
            "seen_size": list(self.seen_size),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, object]) -> "LayerFindings":
        """What `to_dict` wrote, read back from JSON too."""
        readers = {
            "findings": lambda found: tuple(map(LayerFinding.from_dict, found)),
            "breaks": lambda found: {kind: LayerBreak.from_dict(one) for kind, one in found.items()},
            "shifts": lambda found: tuple(map(tuple, found)),
            "movement": lambda found: None if found is None else Movement.from_dict(found),
            "absolute_embeddings": tuple,
            "class_tokens": tuple,
            "flattened": tuple,
            "seen_size": tuple,
        }
        return cls(**{name: readers.get(name, lambda found: found)(value) for name, value in content.items()})  # pyright: ignore[reportArgumentType]


def _explains(part: LayerFinding, whole: LayerFinding) -> bool:
    """Whether the jump of a module is that of a part of it."""
    inside = part is not whole and (part.name.startswith(f"{whole.name}.") or whole.name == "(model)")
    return inside and (part.added or 0.0) >= EXPLAINED_SHARE * (whole.added or 0.0)
