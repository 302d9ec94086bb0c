"""Averages over images, and what resamples of the images say of them: BCa, bootstrap-t, and bands."""

import math
from dataclasses import dataclass
from statistics import NormalDist

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from teka.audit.statistics.estimate import BootstrapSettings

Rows = Float[Tensor, " rows"]
RowsOfImages = Float[Tensor, "rows images"]
_CHUNK = 128
_ROUNDING = 1e-12  # a row whose influences are all below this share of its value is constant: what is left is rounding


class ImageResamples:
    """Resamples of N images with replacement, each with all its shifts, drawn once for every average (Efron 1979)."""

    def __init__(self, num_images: int, settings: BootstrapSettings) -> None:
        generator = torch.Generator().manual_seed(settings.seed)
        counts = []
        for start in range(0, settings.num_resamples, _CHUNK):
            rows = min(_CHUNK, settings.num_resamples - start)
            drawn = torch.randint(num_images, (rows, num_images), generator=generator)
            drawn += num_images * torch.arange(rows)[:, None]
            counts.append(
                torch.bincount(drawn.flatten(), minlength=rows * num_images)
                .view(rows, -1)
                .to(torch.int16)
            )
        self.counts = torch.cat(counts)

    def means(self, values: RowsOfImages) -> Float[Tensor, "resamples rows"]:
        """Mean of each row over the images of each resample, Σ_i n_ri v_i / N: a matrix product."""
        columns = values.T.contiguous()
        products = [chunk.to(values.dtype) @ columns for chunk in self.counts.split(_CHUNK)]
        return torch.cat(products) / values.shape[1]


@dataclass(frozen=True, eq=False)
class ImageAverage:
    """Averages over images, one for each row, a shift or a number made of shifts, and those of each resample.

    To first order, weights w_i of mean 1 of the images give value + Σ_i w_i influence_i / N; influences sum to 0.
    """

    values: Rows
    influence: RowsOfImages
    draws: Float[Tensor, "resamples rows"]

    @property
    def standard_error(self) -> Rows:
        """√(Σ_i influence_i² / (N (N − 1))), for a mean the standard deviation over √N; 0 for one image."""
        num_images = self.influence.shape[1]
        return (self.influence.square().sum(dim=1) / (num_images * max(num_images - 1, 1))).sqrt()

    def combine(self, weights: Float[Tensor, "combinations rows"]) -> "ImageAverage":
        """Weighted sums of the rows."""
        return ImageAverage(weights @ self.values, weights @ self.influence, self.draws @ weights.T)

    def square_root(self) -> "ImageAverage":
        """The square roots of averages ≥ 0: of ratios Σ_i ‖e_i‖² / Σ_i ‖y_i‖², the relative errors."""
        root = self.values.sqrt()
        # d√q = dq / 2√q; where q is 0 no image has an error.
        slope = torch.where(root > 0, 0.5 / root, 0.0)
        return ImageAverage(root, self.influence * slope[:, None], self.draws.clamp(min=0).sqrt())


def average(
    values: Shaped[Tensor, "rows images"],
    resamples: ImageResamples,
    norms: RowsOfImages | None = None,
) -> ImageAverage:
    """Means; with norms b ≥ 0 ratios of sums, q = Σ_i a_i / Σ_i b_i, as which resamples with Σ b = 0 count too."""
    values = values.to(torch.float64)
    means, scale = values.mean(dim=1), torch.ones(len(values), dtype=torch.float64)
    if norms is None:
        influence = values - means[:, None]
    else:
        scale = norms.mean(dim=1)
        means = means / scale
        influence = (values - means[:, None] * norms) / scale[:, None]
    largest = influence.abs().amax(dim=1)
    influence = influence.masked_fill((largest <= _ROUNDING * means.abs())[:, None], 0.0)
    # Deviations are resampled, not values, so that float32 has all its digits for the spread.
    largest = largest.clamp(min=torch.finfo(torch.float64).tiny)
    deviation = (
        resamples.means((influence / largest[:, None]).to(torch.float32)).to(torch.float64)
        * largest
    )
    if norms is not None:
        weight = resamples.means((norms / scale[:, None]).to(torch.float32)).to(torch.float64)
        deviation = torch.where(weight > 0, deviation / weight, 0.0)
    return ImageAverage(means, influence, means + deviation)


def bca_interval(average: ImageAverage, confidence: float) -> tuple[Rows, Rows]:
    """Efron's BCa interval (1987) of each row; the value itself where images do not differ.

    The ends are the quantiles of the draws at Φ(z₀ + (z₀ ± z) / (1 − a (z₀ ± z))), with the normal quantile z, z₀ =
    Φ⁻¹(share of draws below the value, ties by half), and the acceleration a = Σ u³ / (6 (Σ u²)^{3/2}) of the
    influences u. Not `scipy.stats.bootstrap`: its jackknife takes N² values, and it draws anew for each number.
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
    ordered, columns = draws.sort(dim=0).values, torch.arange(draws.shape[1])
    ends = []
    for sign in (-1, 1):
        moved = bias + sign * quantile
        # The limit at 0 is an end of the range; past it the formula would turn round.
        level = torch.special.ndtr(bias + moved / (1 - acceleration * moved).clamp(min=1e-6))
        place = level * (num_draws - 1)
        low, high = place.floor().long(), place.ceil().long()
        end = torch.lerp(ordered[low, columns], ordered[high, columns], place - low)
        ends.append(torch.where(varies, end, values))
    return ends[0], ends[1]


def logarithmic_critical_values(
    average: ImageAverage, images: ImageResamples, confidence: float
) -> tuple[Rows, float]:
    """Quantiles of |t*| = |log θ*_s − log θ_s| / (σ*_s / θ*_s), of each row and of the largest over all rows.

    σ*_s is the standard error within the resample (bootstrap-t, Hall 1988). Draws of 0 do not count; without spread the
    value is 0.
    """
    largest = average.influence.abs().amax(dim=1)
    unit = average.influence / torch.where(largest > 0, largest, 1.0)[:, None]
    square = images.means(unit.square().to(torch.float32)).to(torch.float64)
    deviation = average.draws - average.values
    # The mean of a resample's influences is its deviation, so this is their variance.
    variance = (square * largest.square() - deviation.square()).clamp(min=0)
    error = (variance / max(average.influence.shape[1] - 1, 1)).sqrt()
    counts = (average.draws > 0) & (error > 0)
    ratio = torch.where(counts, average.draws / average.values, 1.0)
    t = torch.where(counts, ratio.log() * average.draws / error, 0.0).abs()
    rank = min(math.ceil(confidence * (len(t) + 1)), len(t))
    return t.kthvalue(rank, dim=0).values, t.amax(dim=1).kthvalue(rank).values.item()


def simultaneous_critical_value(
    influence: RowsOfImages, settings: BootstrapSettings, known: int | None = None
) -> float:
    """Quantile of the largest |θ*_s − θ_s| / σ_s over the rows, by multiplier bootstrap; at least the normal one.

    θ*_s − θ_s = Σ_i g_i u_si / N with the influences u and independent normal g_i, the same for all rows (Montiel Olea
    and Plagborg-Møller 2019; Chernozhukov, Chetverikov and Kato 2013): counts of images would be few and skewed. Rows
    without spread, of which nothing is known, count as independent ones, but for the row `known`.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    norm = influence.square().sum(dim=1).sqrt()
    rows = influence[norm > 0] / norm[norm > 0][:, None]
    columns = rows.to(torch.float32).T.contiguous()
    largest = torch.zeros(settings.num_resamples, dtype=torch.float64)
    if len(rows):
        for start in range(0, settings.num_resamples, _CHUNK):
            size = min(_CHUNK, settings.num_resamples - start)
            multipliers = torch.randn(size, influence.shape[1], generator=generator)
            largest[start : start + size] = (
                (multipliers @ columns).abs().amax(dim=1).to(torch.float64)
            )
    if num_constant := int((norm == 0).sum()) - (known is not None):
        # The largest of n independent |z| is below t with probability (2 Φ(t) − 1)^n.
        uniform = torch.rand(settings.num_resamples, generator=generator, dtype=torch.float64)
        largest = largest.maximum(torch.special.ndtri((1 + uniform ** (1 / num_constant)) / 2))
    return max(settings.normal_quantile, torch.quantile(largest, settings.confidence).item())
