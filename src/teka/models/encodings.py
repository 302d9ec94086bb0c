"""The relative encodings of Cordonnier et al. 2020, as they begin there."""

import torch

from teka.errors import unknown_name
from teka.nn import EmbeddedTable, GeneralizedQuadratic, Quadratic
from teka.nn.relative import RelativeModule
from teka.nn.relative.initial import inverse_softplus

ENCODINGS = ("quadratic", "generalized_quadratic", "table")
# α = ½ is a Gaussian of standard deviation 1, as Σ = 1 of the generalised one.
INITIAL_PRECISION = 0.5
PRECISION_NOISE = 0.01


def make_encoding(encoding: str, *, heads: int, sides: tuple[int, ...], embedding_dim: int) -> RelativeModule:
    """A relative kernel on a grid.

    Centres begin as N(0, 2²) along every axis, Gaussians with a standard deviation of one cell, those of any shape with
    Σ^(−1/2) = 1 + N(0, 0.01²), and the table as `teka.nn.EmbeddedTable` says, with an embedding of every offset on the
    grid.

    Source: Cordonnier et al. 2020, §4.2, §4.3 and A.1, and their code where the text leaves it open: 2 and 0.01 are
    standard deviations, and the width of the plain Gaussians.

    Args:
        encoding: "quadratic", "generalized_quadratic" or "table".
        heads: Number of heads.
        sides: Cells of the grid along every axis.
        embedding_dim: Size of the embeddings of "table".

    Raises:
        ValueError: An unknown name.
    """
    num_axes = len(sides)
    match encoding:
        case "quadratic":
            quadratic = Quadratic(num_axes, heads)
            precision = torch.full_like(quadratic.raw_precision, INITIAL_PRECISION)
            with torch.no_grad():
                quadratic.raw_precision.copy_(inverse_softplus(precision))
            return quadratic
        case "generalized_quadratic":
            generalized = GeneralizedQuadratic(num_axes, heads)
            with torch.no_grad():
                generalized.precision_factor.add_(PRECISION_NOISE * torch.randn_like(generalized.precision_factor))
            return generalized
        case "table":
            return EmbeddedTable(num_axes, heads, max_offset=max(*sides, 2) - 1, embedding_dim=embedding_dim)
        case _:
            raise unknown_name("encoding", encoding, ENCODINGS)
