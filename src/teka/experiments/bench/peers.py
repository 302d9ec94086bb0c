"""Other libraries' attention, as layers that the benchmark can call."""

import warnings

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from teka.grid import Grid


class FusedSoftmax(nn.Module):
    """`torch.nn.functional.scaled_dot_product_attention` between four projections.

    Args:
        dim: Size of a token.
        heads: Number of heads, a divisor of dim.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, tokens: Float[Tensor, "batch tokens dim"], grid: Grid) -> Float[Tensor, "batch tokens dim"]:
        """Attend, without position."""
        query, key, value = (
            projection(tokens).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        return self.output(scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))


class PerformerPytorch(nn.Module):
    """`performer_pytorch.SelfAttention`, not causal, with its own number of random features.

    Args:
        dim: Size of a token.
        heads: Number of heads, a divisor of dim.

    Raises:
        ImportError: performer-pytorch is not installed.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        try:
            with warnings.catch_warnings():
                # It compares torch's version by way of distutils while it is imported.
                warnings.filterwarnings("ignore", "distutils Version classes are deprecated", DeprecationWarning)
                from performer_pytorch import SelfAttention
        except ImportError as error:
            raise ImportError(
                "the layer 'performer_pytorch' needs performer-pytorch, which is not installed: "
                "pip install teka[bench], or leave that layer out"
            ) from error
        self.attention = SelfAttention(dim, heads=heads, causal=False, dim_head=dim // heads)

    def forward(self, tokens: Float[Tensor, "batch tokens dim"], grid: Grid) -> Float[Tensor, "batch tokens dim"]:
        """Attend, without position."""
        return self.attention(tokens)
