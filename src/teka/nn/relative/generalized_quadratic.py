"""The generalized quadratic kernel with learned centres and precisions."""

import torch
from torch.nn import Parameter

from teka.checks import check_sizes
from teka.functional import relative
from teka.nn.relative.base import RelativeModule


class GeneralizedQuadratic(RelativeModule):
    """`teka.functional.GeneralizedQuadratic` with learned Δ_h ~ N(0, 2²) and L, the identity at first.

    Σ⁻¹ = LᵀL is positive semi-definite for any L (Cordonnier et al. 2020).

    Args:
        num_axes: Number of axes n of the grid.
        heads: Number of heads.

    Raises:
        ValueError: A size below 1.
    """

    def __init__(self, num_axes: int, heads: int) -> None:
        super().__init__()
        check_sizes({"num_axes": num_axes, "heads": heads})
        self.center = Parameter(2 * torch.randn(heads, num_axes))
        self.precision_factor = Parameter(torch.eye(num_axes).repeat(heads, 1, 1))

    def forward(self) -> relative.GeneralizedQuadratic:
        """The kernel with the present parameters."""
        return relative.GeneralizedQuadratic(self.center, self.precision_factor)
