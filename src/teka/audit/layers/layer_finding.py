"""What was measured of one layer."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

# A layer breaks where its error is above this many times the difference of two runs that should not differ.
NOISE_FACTOR = 10.0


@dataclass(frozen=True)
class LayerFinding:
    """What was measured of one layer, relative to the size of its output; every error is that of the worst shift.

    Args:
        name: Name of the module, with its number where a forward pass calls it again: "relu (call 2)".
        kind: Class of the module.
        layout: How the output lies in memory, a name of `teka.audit.layers.layout.LAYOUTS`.
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

    def to_dict(self) -> dict[str, object]:
        """The fields, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, object]) -> "LayerFinding":
        """What `to_dict` wrote, read back from JSON too."""
        return cls(**{name: _as_tuple(value) for name, value in content.items()})  # pyright: ignore[reportArgumentType]


def _as_tuple(value: object) -> object:
    return tuple(map(_as_tuple, value)) if isinstance(value, list | tuple) else value
