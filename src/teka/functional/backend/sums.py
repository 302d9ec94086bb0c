"""What every fast backend returns: numerators and denominators of a weighted mean, before the division."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


def with_ones(value: Float[Tensor, "batch heads keys dim"]) -> Float[Tensor, "batch heads keys channels"]:
    """Values with a column of ones, so that one product gives numerators and denominators."""
    return torch.cat([value, value.new_ones(*value.shape[:-1], 1)], dim=-1)


@dataclass(frozen=True)
class Sums:
    """Σ_j weight_ij v_j and Σ_j weight_ij, both divided by exp(log_peak_i), which keeps them in range.

    Args:
        numerator: Weighted sum of the values.
        denominator: Sum of the weights.
        log_peak: What was taken out of each row, or None for nothing.
    """

    numerator: Float[Tensor, "batch heads queries dim"]
    denominator: Float[Tensor, "batch heads queries"]
    log_peak: Float[Tensor, "#batch #heads #queries"] | None = None

    def __add__(self, other: "Sums") -> "Sums":
        """Sums over both sets of keys."""
        if self.log_peak is None and other.log_peak is None:
            return Sums(self.numerator + other.numerator, self.denominator + other.denominator)
        zero = torch.zeros((), dtype=self.numerator.dtype, device=self.numerator.device)
        peaks = [zero if sums.log_peak is None else sums.log_peak for sums in (self, other)]
        peak = torch.maximum(*peaks).detach()
        mine, theirs = (torch.exp(part - peak) for part in peaks)
        return Sums(
            self.numerator * mine[..., None] + other.numerator * theirs[..., None],
            self.denominator * mine + other.denominator * theirs,
            peak,
        )

    def divide(self, *, nonnegative: bool) -> Float[Tensor, "batch heads queries dim"]:
        """The weighted mean.

        Args:
            nonnegative: Whether no weight is negative; then a row whose weights all underflow gives 0 and not NaN.
        """
        denominator = self.denominator
        empty = denominator < torch.finfo(denominator.dtype).tiny if nonnegative else denominator == 0
        # The numerator of such a row is 0 too. Divided by 1 it has a finite gradient; by a tiny number it has none.
        return self.numerator / denominator.masked_fill(empty, 1.0)[..., None]
