"""Averages over images and their bootstrap intervals: BCa, bootstrap-t and simultaneous bands."""

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
# A row is constant if all its influences are below this fraction of its value.
# Such influences are rounding errors.
_ROUNDING = 1e-12


class ImageResamples:
    """Bootstrap resamples of N images, drawn with replacement once and used for every average.

    A resample takes an image together with its outputs at all shifts, so that the dependence
    between shifts is kept. Source: Efron, "Bootstrap methods: another look at the jackknife",
    1979.

    Args:
        num_images: Number of images N.
        settings: Number of resamples and seed of the random generator.
    """

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
        """Return the mean of each row over the images of each resample.

        With the number n_ri of times that resample r contains image i, the mean is
        Σ_i n_ri v_i / N, which is computed as a matrix product.
        """
        columns = values.T.contiguous()
        products = [chunk.to(values.dtype) @ columns for chunk in self.counts.split(_CHUNK)]
        return torch.cat(products) / values.shape[1]


@dataclass(frozen=True, eq=False)
class ImageAverage:
    """Averages over images, one per row, with their bootstrap distribution.

    A row is one shift, or one number computed from several shifts. The influence of an image is
    the first-order change of the average when the image gets more weight: image weights w_i with
    mean 1 give approximately value + Σ_i w_i influence_i / N. The influences of a row sum to 0.

    Args:
        values: Average of each row.
        influence: Influence of each image on each row.
        draws: Average of each row in each bootstrap resample.
    """

    values: Rows
    influence: RowsOfImages
    draws: Float[Tensor, "resamples rows"]

    @property
    def standard_error(self) -> Rows:
        """Standard error of each row, √(Σ_i influence_i² / (N (N − 1))).

        For a mean it is the standard deviation divided by √N. It is 0 for a single image.
        """
        num_images = self.influence.shape[1]
        return (self.influence.square().sum(dim=1) / (num_images * max(num_images - 1, 1))).sqrt()

    def combine(self, weights: Float[Tensor, "combinations rows"]) -> "ImageAverage":
        """Return weighted sums of the rows as new averages, one per row of `weights`."""
        return ImageAverage(weights @ self.values, weights @ self.influence, self.draws @ weights.T)

    def square_root(self) -> "ImageAverage":
        """Return the square roots of non-negative averages, such as relative errors.

        The relative error is the root of the ratio Σ_i ‖e_i‖² / Σ_i ‖y_i‖².
        """
        root = self.values.sqrt()
        # d√q = dq / 2√q; where q is 0 no image has an error.
        slope = torch.where(root > 0, 0.5 / root, 0.0)
        return ImageAverage(root, self.influence * slope[:, None], self.draws.clamp(min=0).sqrt())


def average(
    values: Shaped[Tensor, "rows images"],
    resamples: ImageResamples,
    norms: RowsOfImages | None = None,
) -> ImageAverage:
    """Return the mean over images of each row, or a ratio of sums, with bootstrap resamples.

    Args:
        values: Value a_i of each image in each row.
        resamples: Bootstrap resamples of the images.
        norms: Norms b_i ≥ 0. If given, the average is the ratio Σ_i a_i / Σ_i b_i. A resample
            with Σ_i b_i = 0 counts as the ratio of all images.
    """
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
    # Resample deviations instead of values, so that all digits of float32 describe the spread.
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
    """Return the ends of the BCa bootstrap interval of each row.

    The ends are the quantiles of the draws at Φ(z₀ + (z₀ ± z) / (1 − a (z₀ ± z))), with the
    normal quantile z, the bias correction z₀ = Φ⁻¹(share of draws below the value, ties count
    half), and the acceleration a = Σ u³ / (6 (Σ u²)^{3/2}) of the influences u. Where all images
    have the same value, both ends are this value. Source: Efron, "Better bootstrap confidence
    intervals", 1987.

    Note:
        `scipy.stats.bootstrap` is not used because its jackknife needs N² values and because it
        draws new resamples for each number.
    """
    draws, values, influence = average.draws, average.values, average.influence
    num_draws = len(draws)
    below = ((draws < values).sum(dim=0) + 0.5 * (draws == values).sum(dim=0)) / num_draws
    # With no draw on one side the correction would be infinite.
    bias = torch.special.ndtri(below.to(torch.float64).clamp(0.5 / num_draws, 1 - 0.5 / num_draws))
    square = influence.square().sum(dim=1)
    varies = square > 0
    # Normalize before taking cubes, because the cube of a small influence would underflow.
    unit = influence / torch.where(varies, square, 1.0).sqrt()[:, None]
    acceleration = unit.pow(3).sum(dim=1) / 6
    quantile = NormalDist().inv_cdf((1 + confidence) / 2)
    ordered, columns = draws.sort(dim=0).values, torch.arange(draws.shape[1])
    ends = []
    for sign in (-1, 1):
        moved = bias + sign * quantile
        # At 0 the level is 0 or 1. Below 0 the formula would change its direction.
        level = torch.special.ndtr(bias + moved / (1 - acceleration * moved).clamp(min=1e-6))
        place = level * (num_draws - 1)
        low, high = place.floor().long(), place.ceil().long()
        end = torch.lerp(ordered[low, columns], ordered[high, columns], place - low)
        ends.append(torch.where(varies, end, values))
    return ends[0], ends[1]


def logarithmic_critical_values(
    average: ImageAverage, images: ImageResamples, confidence: float
) -> tuple[Rows, float]:
    """Return critical values of bootstrap-t for logarithms of averages, per row and for all rows.

    They are the quantiles of |t*| = |log θ*_s − log θ_s| / (σ*_s / θ*_s) for each row s, and of
    the largest |t*| over all rows. θ*_s is the average of row s in a resample and σ*_s its
    standard error within the resample. Resamples with an average of 0 are ignored. A row without
    spread has the critical value 0. Source: Hall, "Theoretical comparison of bootstrap confidence
    intervals", 1988.
    """
    largest = average.influence.abs().amax(dim=1)
    unit = average.influence / torch.where(largest > 0, largest, 1.0)[:, None]
    square = images.means(unit.square().to(torch.float32)).to(torch.float64)
    deviation = average.draws - average.values
    # The mean influence in a resample equals its deviation, so this is the variance.
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
    """Return the critical value of a simultaneous band, by the multiplier bootstrap.

    It is the quantile of the largest |θ*_s − θ_s| / σ_s over the rows s, and at least the normal
    quantile. With the influences u and independent standard normal g_i, the same for all rows,
    θ*_s − θ_s = Σ_i g_i u_si / N. Normal multipliers replace resampled counts, which would be
    skewed for few images.

    Sources: Chernozhukov, Chetverikov and Kato, "Gaussian approximations and multiplier bootstrap
    for maxima of sums of high-dimensional random vectors", 2013; Montiel Olea and
    Plagborg-Møller, "Simultaneous confidence bands", 2019.

    Args:
        influence: Influence of each image on each row. Rows without spread count as independent,
            because their dependence is unknown.
        settings: Confidence, number of draws and seed.
        known: Row whose value is known exactly, so that it needs no interval.
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
