"""The yardstick: the four matrix products of an attention layer, and nothing else."""

from jaxtyping import Float
from torch import Tensor, nn

from teka.grid import Grid


class FourGemms(nn.Module):
    """Four linear maps of dim × dim, one after the other: the work of the query, key, value and output projections.

    They are chained, so that nothing but matrix products (with their biases) is run. A layer with these projections
    cannot be faster, whatever it does between them. (Heads that attend by position alone have no keys, so that
    `clipped` has 3½ projections, and no queries if position does not look at them, so that `constant` has 2.)

    Args:
        dim: Size of a token.
        heads: Not used; every layer of the benchmark is made from the same two sizes.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, tokens: Float[Tensor, "batch tokens dim"], grid: Grid) -> Float[Tensor, "batch tokens dim"]:
        """The product with the four matrices."""
        return self.output(self.value(self.key(self.query(tokens))))
