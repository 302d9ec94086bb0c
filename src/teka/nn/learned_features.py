"""A content kernel with a learned feature map as a module: it owns the parameters."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import Parameter

from teka.checks import check_name, check_sizes
from teka.functional.kernel import LEARNED_KERNELS, FeatureKernel


class LearnedFeatures(nn.Module):
    """A kernel whose feature map is learned, one for each head, beginning as the identity (Zhang et al. 2024).

    Args:
        kernel: A name of `teka.functional.kernel.LEARNED_KERNELS`.
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
        check_name("kernel", kernel, LEARNED_KERNELS)
        check_sizes({"dim": dim, "heads": heads})
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
