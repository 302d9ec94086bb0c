"""Draws w of random features: the projections that they are made with, and how many there are."""

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from teka.checks import check_name, check_sizes, check_tensor_sizes
from teka.errors import wrong_type
from teka.functional.shapes import ProjectionMatrix

MOST_DRAWS = 2**20  # which take seconds


def independent_projection(num_features: int, dim: int, generator: Generator) -> ProjectionMatrix:
    """Independent draws w_r ~ N(0, I)."""
    return torch.randn(
        num_features, dim, dtype=torch.float64, generator=generator, device=generator.device
    )


def orthogonal_projection(num_features: int, dim: int, generator: Generator) -> ProjectionMatrix:
    """Draws w_r ~ N(0, I) that are orthogonal within each block of d (Choromanski et al. 2021, §2.4)."""
    directions = _orthogonal_directions(num_features, dim, generator)
    return directions * independent_projection(num_features, dim, generator).norm(
        dim=-1, keepdim=True
    )


def fixed_norm_projection(num_features: int, dim: int, generator: Generator) -> ProjectionMatrix:
    """Draws orthogonal within each block of d, all of length √d: SMREG of Choromanski et al. 2021, Theorem 1.

    Features estimate a kernel below exp(xᵀy), the more so the larger ‖x + y‖ and the smaller d, with less variance.
    """
    return _orthogonal_directions(num_features, dim, generator) * math.sqrt(dim)


def _orthogonal_directions(num_features: int, dim: int, generator: Generator) -> ProjectionMatrix:
    """Unit vectors, orthogonal within each block of d: Q of a Gaussian matrix' QR with R's signs taken out is Haar."""
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
) -> ProjectionMatrix:
    """A random projection, m = `num_features` draws of size d = `dim`, shape (m, d), in float64 on the CPU.

    It is "orthogonal", "independent" or "fixed_norm", from a generator on the CPU; else a ValueError.
    """
    check_name("projection", projection, PROJECTIONS)
    check_sizes({"num_features": num_features}, most=MOST_DRAWS)
    check_tensor_sizes({"num_features": num_features, "dim": dim})
    check_tensor_sizes({"dim": dim}, dim**2)
    if not isinstance(generator, Generator):
        raise wrong_type("generator", generator, "a torch.Generator")
    return PROJECTIONS[projection](num_features, dim, generator)


def default_num_features(dim: int) -> int:
    """Number of random features m = ⌊d ln d⌋, at least 1 (Choromanski et al. 2021, Theorem 4; Horn et al. 2021)."""
    check_sizes({"dim": dim}, 0)
    return max(1, int(dim * math.log(dim))) if dim > 0 else 1
