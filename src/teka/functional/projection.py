"""Random projections w for random features."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from teka.checks import check_name, check_sizes
from teka.errors import wrong_type


def independent_projection(num_features: int, dim: int, generator: Generator) -> Float[Tensor, "features dim"]:
    """Independent draws w_r ~ N(0, I), in float64 on the CPU.

    Args:
        num_features: Number of draws m.
        dim: Size d of a draw.
        generator: Source of randomness; the same state gives the same projection.
    """
    return torch.randn(num_features, dim, dtype=torch.float64, generator=generator)


def orthogonal_projection(num_features: int, dim: int, generator: Generator) -> Float[Tensor, "features dim"]:
    """Draws w_r ~ N(0, I) that are orthogonal within each block of d, in float64 on the CPU.

    Directions come from the QR decomposition of a Gaussian matrix with the signs of R's diagonal taken out (Haar
    distributed), lengths from independent Gaussian vectors (Choromanski et al. 2021, §2.4).

    Args:
        num_features: Number of draws m.
        dim: Size d of a draw.
        generator: Source of randomness; the same state gives the same projection.
    """
    directions = _orthogonal_directions(num_features, dim, generator)
    return directions * independent_projection(num_features, dim, generator).norm(dim=-1, keepdim=True)


def fixed_norm_projection(num_features: int, dim: int, generator: Generator) -> Float[Tensor, "features dim"]:
    """Draws w_r that are orthogonal within each block of d and all of length √d, in float64 on the CPU.

    The regularised softmax kernel of Choromanski et al. 2021, Theorem 1 (SMREG). Features from it are not unbiased:
    they estimate a kernel that is below exp(xᵀy), the more so the larger ‖x + y‖ and the smaller d, in return for a
    smaller variance.

    Args:
        num_features: Number of draws m.
        dim: Size d of a draw.
        generator: Source of randomness; the same state gives the same projection.
    """
    return _orthogonal_directions(num_features, dim, generator) * math.sqrt(dim)


def _orthogonal_directions(num_features: int, dim: int, generator: Generator) -> Float[Tensor, "features dim"]:
    """Unit vectors, Haar distributed and orthogonal within each block of d."""
    blocks = []
    for start in range(0, num_features, dim):
        orthogonal, triangular = torch.linalg.qr(independent_projection(dim, dim, generator))
        orthogonal = orthogonal * torch.sign(torch.diagonal(triangular))
        blocks.append(orthogonal.T[: num_features - start])
    return torch.cat(blocks)


PROJECTIONS: dict[str, Callable[[int, int, Generator], Tensor]] = {
    "orthogonal": orthogonal_projection,
    "independent": independent_projection,
    "fixed_norm": fixed_norm_projection,
}


def draw_projection(
    num_features: int, dim: int, *, generator: Generator, projection: str = "orthogonal"
) -> Float[Tensor, "features dim"]:
    """A random projection by name, in float64 on the CPU.

    Args:
        num_features: Number of draws m.
        dim: Size d of a draw.
        generator: Source of randomness, on the CPU.
        projection: "orthogonal", "independent" or "fixed_norm".

    Raises:
        ValueError: A size below 1, or an unknown name.
    """
    check_name("projection", projection, PROJECTIONS)
    check_sizes({"num_features": num_features, "dim": dim})
    if not isinstance(generator, Generator):
        raise wrong_type("generator", generator, "a torch.Generator")
    return PROJECTIONS[projection](num_features, dim, generator)
