"""Averages over images, with what a bootstrap over images needs to know of them."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from teka.audit.statistics.resampling import ImageResamples

# A row whose influences are all below this share of its value is constant: what is left is rounding.
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class ImageAverage:
    """Averages over images, one for each row; a row is a shift, or a number made of shifts.

    Args:
        values: The averages, (rows,).
        influence: How an average moves with the weight of an image, (rows, N): to first order, weights w_i of mean 1
            give value + Σ_i w_i influence_i / N. They sum to 0 over images.
        draws: The averages of each resample, (R, rows).
    """

    values: Float[Tensor, " rows"]
    influence: Float[Tensor, "rows images"]
    draws: Float[Tensor, "resamples rows"]

    @property
    def standard_error(self) -> Float[Tensor, " rows"]:
        """√(Σ_i influence_i² / (N (N − 1))), for a mean the standard deviation over √N; 0 for one image."""
        num_images = self.influence.shape[1]
        return (self.influence.square().sum(dim=1) / (num_images * max(num_images - 1, 1))).sqrt()

    def combine(self, weights: Float[Tensor, "combinations rows"]) -> "ImageAverage":
        """Weighted sums of the rows."""
        return ImageAverage(weights @ self.values, weights @ self.influence, self.draws @ weights.T)

    def less(self, other: "ImageAverage") -> "ImageAverage":
        """The differences to other averages over the same resamples of the same images."""
        return ImageAverage(self.values - other.values, self.influence - other.influence, self.draws - other.draws)


def average(values: Float[Tensor, "rows images"], resamples: ImageResamples) -> ImageAverage:
    """Means over images.

    Args:
        values: A value for each image, float64.
        resamples: The resamples of the images.
    """
    means = values.mean(dim=1)
    influence = _without_rounding(values - means[:, None], means)
    # Deviations are resampled, not values, so that float32 has all its digits for the spread.
    return ImageAverage(means, influence, means + _spread(influence, resamples))


def average_ratio(
    numerator: Float[Tensor, "rows images"], denominator: Float[Tensor, "rows images"], resamples: ImageResamples
) -> ImageAverage:
    """Ratios of sums over images, q = Σ_i a_i / Σ_i b_i.

    A resample with Σ b = 0 does not define the ratio and counts as q.

    Args:
        numerator: a_i, float64.
        denominator: b_i ≥ 0, float64, with a positive sum in each row.
        resamples: The resamples of the images.
    """
    scale = denominator.mean(dim=1)
    ratio = numerator.mean(dim=1) / scale
    influence = _without_rounding((numerator - ratio[:, None] * denominator) / scale[:, None], ratio)
    weight = resamples.means((denominator / scale[:, None]).to(torch.float32)).to(torch.float64)
    deviation = _spread(influence, resamples) / weight
    return ImageAverage(ratio, influence, ratio + torch.where(weight > 0, deviation, 0.0))


def square_root(average: ImageAverage) -> ImageAverage:
    """The square roots of averages that are not negative: of ratios Σ_i ‖e_i‖² / Σ_i ‖y_i‖², the relative errors."""
    root = average.values.sqrt()
    # d√q = dq / 2√q; where q is 0 no image has an error.
    slope = torch.where(root > 0, 0.5 / root, 0.0)
    return ImageAverage(root, average.influence * slope[:, None], average.draws.clamp(min=0).sqrt())


def _spread(influence: Float[Tensor, "rows images"], resamples: ImageResamples) -> Float[Tensor, "resamples rows"]:
    largest = influence.abs().amax(dim=1).clamp(min=torch.finfo(torch.float64).tiny)
    scaled = (influence / largest[:, None]).to(torch.float32)
    return resamples.means(scaled).to(torch.float64) * largest


def _without_rounding(
    influence: Float[Tensor, "rows images"], values: Float[Tensor, " rows"]
) -> Float[Tensor, "rows images"]:
    is_constant = influence.abs().amax(dim=1) <= _ROUNDING * values.abs()
    return influence.masked_fill(is_constant[:, None], 0.0)
