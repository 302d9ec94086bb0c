"""A content kernel with a learned feature map as a module: it owns the parameters."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import Parameter

from teka.errors import unknown_name, wrong_value
from teka.functional.kernel import LEARNED_KERNELS, FeatureKernel


class LearnedFeatures(nn.Module):
    """A kernel whose feature map is learned, one for each head, beginning as the identity (Zhang et al. 2024).

    Args:
        kernel: "hedgehog".
        dim: Size d of queries and keys.
        heads: Number of heads H that attend by content.

    Raises:
        ValueError: An unknown name, or a size below 1.
    """

    query_weight: Float[Tensor, "heads maps dim"]
    key_weight: Float[Tensor, "heads maps dim"]
    query_bias: Float[Tensor, "heads maps"]
    key_bias: Float[Tensor, "heads maps"]

    def __init__(self, kernel: str, dim: int, heads: int) -> None:
        super().__init__()
        if kernel not in LEARNED_KERNELS:
            raise unknown_name("kernel", kernel, LEARNED_KERNELS)
        for argument, size in (("dim", dim), ("heads", heads)):
            if size < 1:
                raise wrong_value(argument, size, "at least 1")
        self.kernel = kernel
        self.dim = dim
        self.heads = heads
        initial = LEARNED_KERNELS[kernel].identity(dim, heads)
        self.query_weight = Parameter(initial.query_weight)
        self.key_weight = Parameter(initial.key_weight)
        self.query_bias = Parameter(initial.query_bias)
        self.key_bias = Parameter(initial.key_bias)

    def forward(self) -> FeatureKernel:
        """The kernel with the present parameters."""
        return LEARNED_KERNELS[self.kernel](self.query_weight, self.key_weight, self.query_bias, self.key_bias)

    def extra_repr(self) -> str:
        """Sizes for repr."""
        return f"{self.kernel!r}, dim={self.dim}, heads={self.heads}"
