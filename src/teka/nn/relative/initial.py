"""What the initial values of relative kernels are made from."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize


def inverse_softplus(value: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The number whose softplus is the given one, log(eˣ − 1).

    Args:
        value: Positive numbers.
    """
    return value + torch.log(-torch.expm1(-value))


def random_directions(heads: int, num_directions: int, num_axes: int) -> Float[Tensor, "heads directions axes"]:
    """Unit vectors, uniform over directions, from torch's global generator.

    Args:
        heads: Number of heads.
        num_directions: Number of vectors for each head.
        num_axes: Their number of components.
    """
    return normalize(torch.randn(heads, num_directions, num_axes), dim=-1)
