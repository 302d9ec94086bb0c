"""What was measured of the layers of a model, and which of them are to blame."""

from dataclasses import dataclass, field

from teka.audit.movement import Movement

# Equivariance is lost within the image, at its edge, or between the cells of a grid.
BREAKS = ("interior", "edge", "aliasing")
# A layer breaks where its error is above this many times the difference of two runs that should not differ.
NOISE_FACTOR = 10.0
# A module is left out of the biggest jumps if a part of it has at least this share of its own.
EXPLAINED_SHARE = 0.5


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


@dataclass(frozen=True)
class LayerFinding:
    """What was measured of one layer, relative to the size of its output; every error is that of the worst shift.

    Args:
        name: Name of the module, with its number where a forward pass calls it again: "relu (call 2)".
        kind: Class of the module.
        layout: How the output lies in memory, a name of `teka.audit.layers.recogniser.LAYOUTS`.
        grid: Cells along every axis; () for a vector.
        stride: Pixels from one cell to the next along every axis; for a vector, of the coarsest layer before it.
        prefix_tokens: Tokens before those of the grid, such as a class token.
        interior_error: Error of the cells that the edge of the image cannot reach, at shifts that are multiples of the
            stride. None where every cell is in reach of it, and for vectors: there only `error` speaks.
        border_error: The same of the other cells. None where there is no interior.
        aliasing_error: Error at the other shifts, against the best of the neighbouring multiples of the stride. None
            where all measured shifts are multiples.
        noise: Difference of the outputs for two copies of the same images.
        added: `error` less that of the layer's input at the same shifts. None where either could not be measured.
        error: Error of all cells that came from inside, at multiples of the stride. None where no shift is one.
        border: Cells that the edge can reach, before the interior and after it along every axis; () for a vector.
        exact_step: The fewest pixels along every axis such that all measured shifts along that axis by multiples of
            them are within the limit; None for an axis without any.
        errors: The error at each of the shifts that were measured, of the interior where there is one; None where no
            cell can be compared.
    """

    name: str
    kind: str
    layout: str
    grid: tuple[int, ...]
    stride: tuple[int | float, ...]
    prefix_tokens: int
    interior_error: float | None
    border_error: float | None
    aliasing_error: float | None
    noise: float
    added: float | None
    error: float | None = None
    border: tuple[tuple[int, int], ...] = ()
    exact_step: tuple[int | None, ...] = ()
    errors: tuple[float | None, ...] = ()

    def limit(self, threshold: int | float) -> float:
        """The error above which the layer breaks: the threshold, or 10 times the noise if that is more."""
        return max(threshold, NOISE_FACTOR * self.noise)


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
        breaks: The first break of each kind, "interior", "edge" or "aliasing".
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


def _explains(part: LayerFinding, whole: LayerFinding) -> bool:
    """Whether the jump of a module is that of a part of it."""
    inside = part is not whole and (part.name.startswith(f"{whole.name}.") or whole.name == "(model)")
    return inside and (part.added or 0.0) >= EXPLAINED_SHARE * (whole.added or 0.0)
