"""Attention that finds zero tokens outside its grid, as a convolution with zero padding does."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from teka.errors import wrong_shape, wrong_value
from teka.grid import Grid
from teka.nn import Attention

# Share of a cell by which a grid's spacing may differ from the one that the heads' centres were made for.
SPACING_TOLERANCE = 1e-6


class ZeroBordered(nn.Module):
    """Attention by position alone from the cells of a grid to them and to a border of zero tokens around them.

    Attention normalises over the keys that there are, so that a head that looks over an edge finds the nearest cell
    inside. Here it finds a token 0 up to `border` cells outside.

    Source: the padding of the convolutions in Cordonnier et al. 2020, Theorem 1.

    Args:
        attention: Layer whose content kernel does not look at content; its own size is the output's, and the tokens
            have its `context_dim`.
        border: Cells around the grid along each axis.
        spacing: Distance between neighbouring cells along each axis of the grids to come, in physical units.

    Raises:
        ValueError: A layer with queries or keys, or not as many spacings as borders.
    """

    def __init__(self, attention: Attention, border: Sequence[int], spacing: Sequence[float]) -> None:
        super().__init__()
        if attention.query is not None or attention.key is not None:
            raise wrong_value("attention.kernel", attention.kernel, "one that looks at no content, such as 'constant'")
        if any(cells < 0 for cells in border):
            raise wrong_value("border", border, "numbers of cells of at least 0")
        self.attention = attention
        self.border = tuple(border)
        self.spacing = Grid((1,) * len(self.border), spacing).spacing

    def forward(
        self, tokens: Float[Tensor, "batch tokens context_dim"], grid: Grid
    ) -> Float[Tensor, "batch tokens dim"]:
        """Attend.

        Args:
            tokens: Tokens of the grid, shape (B, L, context_dim).
            grid: The grid whose cells they are.

        Returns:
            Output, shape (B, L, dim).

        Raises:
            ValueError: Tokens of another size or number, or a grid of other axes or spacing, or a periodic one.
        """
        if tokens.ndim != 3 or tokens.shape[-1] != self.attention.context_dim:
            raise wrong_shape("tokens", tokens.shape, f"(batch, tokens, {self.attention.context_dim})")
        fits = grid.num_axes == len(self.border) and all(
            abs(one - two) <= SPACING_TOLERANCE * two for one, two in zip(grid.spacing, self.spacing, strict=True)
        )
        if not fits or any(grid.periodic):
            expected = f"a grid with edges and a spacing of {self.spacing}, one number for each axis"
            raise wrong_value("grid", grid, expected)
        # Two grids from 0 on: only differences count, and they are rounded least there.
        outside = Grid(
            tuple(side + 2 * cells for side, cells in zip(grid.shape, self.border, strict=True)),
            self.spacing,
            origin=tuple(-cells * step for cells, step in zip(self.border, self.spacing, strict=True)),
        )
        around = [cells for one in reversed(self.border) for cells in (one, one)]
        context = outside.flatten(pad(grid.unflatten(tokens), around))
        # What attends is not looked at: only its number and the size of the output count.
        attending = tokens.new_zeros(1).expand(*tokens.shape[:2], self.attention.dim)
        return self.attention(attending, Grid(grid.shape, self.spacing), context=context, context_grid=outside)

    def extra_repr(self) -> str:
        """Border and spacing, for `print`."""
        return f"border={self.border}, spacing={self.spacing}"
