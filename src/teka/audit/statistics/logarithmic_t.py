"""Bootstrap-t for magnitudes, on the logarithmic scale."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from teka.audit.statistics.image_average import ImageAverage
from teka.audit.statistics.resampling import ImageResamples


def critical_values(
    average: ImageAverage, resamples: ImageResamples, confidence: float
) -> tuple[Float[Tensor, " rows"], float]:
    """Quantiles of |t*| = |log θ*_s − log θ_s| / (σ*_s / θ*_s), of each row and of the largest over all rows.

    σ*_s is the standard error within the resample. Losses and errors are positive and skewed to the right, so that a
    mean from too few large values comes with too small a standard error: dividing by each resample's own error takes
    that into account, and the logarithm makes the deviations nearly symmetric.

    Source: Hall, "Theoretical comparison of bootstrap confidence intervals", Annals of Statistics 16 (1988), 927–953,
    for bootstrap-t; the largest over rows as in `simultaneous_critical_value`.

    Args:
        average: Averages θ_s ≥ 0 and their draws. A draw of 0 does not count.
        resamples: The resamples that made the draws.
        confidence: Share of the draws within the critical values.

    Returns:
        The critical value of each row, 0 where images do not differ; and the one for all rows.
    """
    largest = average.influence.abs().amax(dim=1)
    unit = average.influence / torch.where(largest > 0, largest, 1.0)[:, None]
    square = resamples.means(unit.square().to(torch.float32)).to(torch.float64)
    deviation = average.draws - average.values
    # The mean of a resample's influences is its deviation, so this is their variance.
    variance = (square * largest.square() - deviation.square()).clamp(min=0)
    error = (variance / max(average.influence.shape[1] - 1, 1)).sqrt()
    counts = (average.draws > 0) & (error > 0)
    ratio = torch.where(counts, average.draws / average.values, 1.0)
    t = torch.where(counts, ratio.log() * average.draws / error, 0.0).abs()
    rank = min(math.ceil(confidence * (len(t) + 1)), len(t))
    return t.kthvalue(rank, dim=0).values, t.amax(dim=1).kthvalue(rank).values.item()
