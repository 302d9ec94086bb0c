"""Fewer cells with more channels, and back."""

from jaxtyping import Float
from torch import Tensor, nn

from teka.checks import check_kind, check_sizes
from teka.errors import wrong_shape


class InvertibleDownsampling(nn.Module):
    """Every block of f × … × f cells becomes one cell that holds all of their channels.

        y[c fⁿ + (t_1, …, t_n), i] = x[c, f i + t],   t in {0, …, f − 1}ⁿ in row-major order

    Also called space to depth. Nothing is lost: `inverse` gives the same numbers back, bit for bit. With two axes it is
    `torch.nn.PixelUnshuffle`, and its inverse `torch.nn.PixelShuffle`. It has no parameters.

    A shift by f cells is one by a cell of what comes out; other shifts mix the channels.

    Source: Jacobsen et al. 2018 (i-RevNet), §3.1, there after Shi et al. 2016; before the network in Cordonnier et al.
    2020, §4.1, with f = 2.

    Args:
        factor: Side f of a block in cells.
        num_axes: Number of axes n of the maps.

    Raises:
        ValueError: A size below 1.
    """

    def __init__(self, factor: int = 2, num_axes: int = 2) -> None:
        super().__init__()
        check_sizes({"factor": factor, "num_axes": num_axes})
        self.factor, self.num_axes = factor, num_axes
        self.cells_per_block = factor**num_axes

    def forward(self, maps: Float[Tensor, "batch channels *sides"]) -> Float[Tensor, "batch more_channels *fewer"]:
        """The maps with fewer cells and more channels.

        Args:
            maps: Maps, shape (B, C, *S), with every side a multiple of the factor.

        Returns:
            Maps, shape (B, C · fⁿ, *(S / f)).

        Raises:
            ValueError: Another number of axes, or a side that is no multiple.
        """
        check_kind("maps", maps, None)
        if maps.ndim != 2 + self.num_axes or any(side % self.factor for side in maps.shape[2:]):
            expected = f"(batch, channels) and {self.num_axes} sides, multiples of factor = {self.factor}"
            raise wrong_shape("maps", maps.shape, expected)
        split = [size for side in maps.shape[2:] for size in (side // self.factor, self.factor)]
        axes = range(self.num_axes)
        blocks = maps.reshape(*maps.shape[:2], *split)
        within_first = blocks.permute(0, 1, *(3 + 2 * axis for axis in axes), *(2 + 2 * axis for axis in axes))
        return within_first.flatten(1, 1 + self.num_axes)

    def inverse(self, maps: Float[Tensor, "batch more_channels *fewer"]) -> Float[Tensor, "batch channels *sides"]:
        """The maps that `forward` made these from.

        Args:
            maps: Maps, shape (B, C · fⁿ, *S).

        Returns:
            Maps, shape (B, C, *(S · f)).

        Raises:
            ValueError: Another number of axes, or channels that are no multiple of a block's cells.
        """
        check_kind("maps", maps, None)
        if maps.ndim != 2 + self.num_axes or maps.shape[1] % self.cells_per_block:
            expected = f"(batch, a multiple of {self.cells_per_block} channels) and {self.num_axes} sides"
            raise wrong_shape("maps", maps.shape, expected)
        axes = range(self.num_axes)
        sides, channels = maps.shape[2:], maps.shape[1] // self.cells_per_block
        within_first = maps.reshape(maps.shape[0], channels, *[self.factor] * self.num_axes, *sides)
        blocks = within_first.permute(0, 1, *(place for axis in axes for place in (2 + self.num_axes + axis, 2 + axis)))
        return blocks.reshape(maps.shape[0], channels, *(s * self.factor for s in sides))
