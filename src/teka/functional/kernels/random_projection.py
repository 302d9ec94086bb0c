"""Random projection matrices for random features, which estimate softmax attention."""

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from teka.checks import check_name, check_sizes, check_tensor_sizes
from teka.errors import wrong_type
from teka.functional.shapes import ProjectionMatrix

# More draws than these take many seconds.
MOST_DRAWS = 2**20


def independent_projection(num_features: int, dim: int, generator: Generator) -> ProjectionMatrix:
    """Draw a random projection matrix with independent, normally distributed entries."""
    return torch.randn(
        num_features, dim, dtype=torch.float64, generator=generator, device=generator.device
    )


def orthogonal_projection(num_features: int, dim: int, generator: Generator) -> ProjectionMatrix:
    """Draw a random projection matrix with orthogonal rows, for random features.

    Rows are orthogonal within blocks of `dim` rows, and each row is normally distributed.
    Orthogonal rows reduce the variance of the estimated attention weights.

    Source: Choromanski et al. 2021, §2.4.
    """
    directions = _orthogonal_directions(num_features, dim, generator)
    lengths = independent_projection(num_features, dim, generator).norm(dim=-1, keepdim=True)
    return directions * lengths


def fixed_norm_projection(num_features: int, dim: int, generator: Generator) -> ProjectionMatrix:
    """Draw a random projection matrix with orthogonal rows of the same length √dim.

    Rows are orthogonal within blocks of `dim` rows. The fixed length reduces the variance of random
    features, but makes their estimate of exp(xᵀy) too small. This bias is largest for large ‖x + y‖
    and small `dim`.

    Source: Choromanski et al. 2021, Theorem 1 (SMREG).
    """
    return _orthogonal_directions(num_features, dim, generator) * math.sqrt(dim)


def _orthogonal_directions(num_features: int, dim: int, generator: Generator) -> ProjectionMatrix:
    blocks = []
    for start in range(0, num_features, dim):
        orthogonal, triangular = torch.linalg.qr(independent_projection(dim, dim, generator))
        # With the signs of the diagonal of R, the matrix Q is Haar distributed.
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
    """Draw a random projection for random features.

    >>> import torch, teka
    >>> generator = torch.Generator().manual_seed(0)
    >>> teka.functional.draw_projection(8, 4, generator=generator).shape
    torch.Size([8, 4])

    Args:
        num_features: Number of rows m.
        dim: Size d of queries and keys.
        generator: Random generator on the CPU.
        projection: Distribution: "orthogonal", "independent" or "fixed_norm".

    Returns:
        The projection in float64 on the CPU, shape (m, d).

    Raises:
        ValueError: If an argument is invalid.
    """
    check_name("projection", projection, PROJECTIONS)
    check_sizes({"num_features": num_features}, most=MOST_DRAWS)
    check_tensor_sizes({"num_features": num_features, "dim": dim})
    check_tensor_sizes({"dim": dim}, dim**2)
    if not isinstance(generator, Generator):
        raise wrong_type("generator", generator, "a torch.Generator")
    return PROJECTIONS[projection](num_features, dim, generator)


def default_num_features(dim: int) -> int:
    """Return the default number of random features that estimate softmax attention.

    For vectors of size d, this is d ln d, rounded down, and at least 1.

    Source: Choromanski et al. 2021, Theorem 4; Horn et al. 2021.

    >>> import teka
    >>> teka.functional.default_num_features(64)
    266

    Args:
        dim: Size d of queries and keys.

    Raises:
        ValueError: `dim` is below 1.
    """
    check_sizes({"dim": dim}, 0)
    return max(1, int(dim * math.log(dim))) if dim > 0 else 1
