"""The rotation kernel (strategy 1) with learned frequencies and weights."""

import torch
from torch.nn import Parameter

from teka.checks import check_sizes, check_tensor, is_number
from teka.errors import wrong_type, wrong_value
from teka.functional import relative
from teka.functional.relative import NUM_FREQUENCIES, initial_frequency, rotation_scale
from teka.nn.relative.base import RelativeModule


class Rotation(RelativeModule):
    """`teka.functional.Rotation` with learned ω, α and β.

    α, β ~ N(0, σ²) for every head, axis and scale, σ = 1 by default; ω = 8^(−s/2), shared by axes and heads, and by
    layers that are given the same parameter (Horn et al. 2021).

    Args:
        num_axes: Number of axes n of the grid.
        heads: Number of heads.
        dim_head: Size of queries and keys, which sets the scale 1/√(d + 2 · axes · scales).
        num_frequencies: Number of scales.
        frequency: A parameter to share, shape (scales,), instead of one of its own.
        weight_scale: Standard deviation σ of α and β at first; with 0 attention begins without position. With
            three of six kernels 8 learnt better than 1 beyond noise (see "Which kernel?").

    Raises:
        ValueError: A size below 1, a shared parameter that is not a vector, or a deviation that cannot be.
    """

    def __init__(
        self,
        num_axes: int,
        heads: int,
        dim_head: int,
        *,
        num_frequencies: int = NUM_FREQUENCIES,
        frequency: Parameter | None = None,
        weight_scale: float = 1.0,
    ) -> None:
        super().__init__()
        sizes = {"num_axes": num_axes, "heads": heads, "dim_head": dim_head, "num_frequencies": num_frequencies}
        check_sizes(sizes)
        if frequency is not None:
            check_tensor("frequency", frequency, "scales")
            if not isinstance(frequency, Parameter):
                raise wrong_type("frequency", frequency, "a torch.nn.Parameter")
        if not (is_number(weight_scale) and weight_scale >= 0):
            raise wrong_value("weight_scale", weight_scale, "a finite number of at least 0")
        dtype = torch.get_default_dtype()
        self.frequency = Parameter(initial_frequency(num_frequencies).to(dtype)) if frequency is None else frequency
        shape = (heads, num_axes, self.frequency.shape[0])
        self.cosine_weight = Parameter(weight_scale * torch.randn(shape))
        self.sine_weight = Parameter(weight_scale * torch.randn(shape))
        self.scale = rotation_scale(dim_head, num_axes, self.frequency.shape[0])

    def forward(self) -> relative.Rotation:
        """The kernel with the present parameters."""
        return relative.Rotation(self.frequency, self.cosine_weight, self.sine_weight, self.scale)
