"""The bias-corrected and accelerated bootstrap interval."""

from statistics import NormalDist

import torch
from jaxtyping import Float
from torch import Tensor

from teka.audit.statistics.image_average import ImageAverage


def bca_interval(average: ImageAverage, confidence: float) -> tuple[Float[Tensor, " rows"], Float[Tensor, " rows"]]:
    """Efron's BCa interval of each row.

    The ends are the quantiles of the draws at Φ(z₀ + (z₀ ± z) / (1 − a (z₀ ± z))), where z is the normal quantile at
    (1 + confidence) / 2, z₀ = Φ⁻¹(share of draws below the value, ties by half), and the acceleration
    a = Σ u³ / (6 (Σ u²)^{3/2}) of the influences u. They lie within the range of the draws.

    Source: Efron, "Better bootstrap confidence intervals", Journal of the American Statistical Association 82 (1987),
    171–185.

    Args:
        average: Averages over images and their draws.
        confidence: Probability that each interval covers its row, between 0 and 1.

    Returns:
        Lower and upper ends, the value itself where images do not differ.
    """
    draws, values, influence = average.draws, average.values, average.influence
    num_draws = len(draws)
    below = ((draws < values).sum(dim=0) + 0.5 * (draws == values).sum(dim=0)) / num_draws
    # With no draw on one side the correction would be infinite.
    bias = torch.special.ndtri(below.to(torch.float64).clamp(0.5 / num_draws, 1 - 0.5 / num_draws))
    square = influence.square().sum(dim=1)
    varies = square > 0
    # Scaled before it is cubed: the square of a small error is small enough as it is.
    unit = influence / torch.where(varies, square, 1.0).sqrt()[:, None]
    acceleration = unit.pow(3).sum(dim=1) / 6
    quantile = NormalDist().inv_cdf((1 + confidence) / 2)
    ordered = draws.sort(dim=0).values
    ends = []
    for sign in (-1, 1):
        moved = bias + sign * quantile
        # The limit at 0 is an end of the range; past it the formula would turn round.
        level = torch.special.ndtr(bias + moved / (1 - acceleration * moved).clamp(min=1e-6))
        ends.append(torch.where(varies, _quantile_of_columns(ordered, level), values))
    return ends[0], ends[1]


def _quantile_of_columns(ordered: Float[Tensor, "draws rows"], level: Float[Tensor, " rows"]) -> Float[Tensor, " rows"]:
    """Quantiles of sorted columns, each at its own level, linear between neighbours."""
    place = level * (len(ordered) - 1)
    below = place.floor().long()
    above = place.ceil().long()
    columns = torch.arange(ordered.shape[1])
    return torch.lerp(ordered[below, columns], ordered[above, columns], place - below)
