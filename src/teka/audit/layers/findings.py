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

    If none of its cells is out of reach of the edge (`has_interior`), what breaks within the image cannot be told from
    what comes of the edge, and the kind says which is likelier. What happens in a module's own code happens `between`
    the last parts or inputs before and the first after, not within it as a whole.
    """

    kind: str  # one of `BREAKS`
    name: str  # of the innermost module in which it happens
    module: str  # its class
    error: float  # at the worst shift
    limit: int | float
    has_interior: bool = True
    between: tuple[str, str] | None = None


@dataclass(frozen=True)
class LayerFinding:
    """What was measured of one layer, relative to the size of its output; every error is that of the worst shift.

    Errors are at shifts that are multiples of the stride, but for aliasing: that is at the others, against the best of
    the neighbouring multiples. An error is None where nothing could be compared.
    """

    name: str  # of the module, with its number where a forward pass calls it again: "relu (call 2)"
    kind: str  # its class
    layout: str  # one of `teka.audit.layers.recogniser.LAYOUTS`
    grid: tuple[int, ...]  # cells along every axis; () for a vector
    stride: tuple[int | float, ...]  # pixels from cell to cell; for a vector, of the coarsest layer before it
    prefix_tokens: int  # before those of the grid, such as a class token
    interior_error: float | None  # of the cells that the edge of the image cannot reach; None for vectors
    border_error: float | None  # of the other cells; None where there is no interior
    aliasing_error: float | None
    noise: float  # difference of the outputs for two copies of the same images
    added: float | None  # `error` less that of the layer's input at the same shifts
    error: float | None = None  # of all cells that came from inside
    border: tuple[tuple[int, int], ...] = ()  # cells that the edge can reach, before and after the interior
    # The fewest pixels along every axis such that all measured shifts by multiples of them are within the limit.
    exact_step: tuple[int | None, ...] = ()
    errors: tuple[float | None, ...] = ()  # at each shift, of the interior where there is one

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
        """The layers that add most error, the most first; modules of which a part adds half as much are left out."""
        rising = [one for one in self.findings if one.added is not None and one.added > one.limit(self.threshold)]

        def explains(part: LayerFinding, whole: LayerFinding) -> bool:
            inside = part is not whole and (part.name.startswith(f"{whole.name}.") or whole.name == "(model)")
            return inside and (part.added or 0.0) >= EXPLAINED_SHARE * (whole.added or 0.0)

        own = [one for one in rising if not any(explains(part, one) for part in rising)]
        return tuple(sorted(own, key=lambda one: -(one.added or 0.0))[:count])
