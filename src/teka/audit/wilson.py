"""Wilson's interval for a share of successes."""

from statistics import NormalDist
from typing import overload

import torch
from jaxtyping import Float, Int
from torch import Tensor

from teka.errors import wrong_shape, wrong_value


@overload
def wilson_interval(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]: ...
@overload
def wilson_interval(
    successes: Int[Tensor, "..."], trials: int | Int[Tensor, "..."], confidence: float = 0.95
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]: ...
@overload
def wilson_interval(
    successes: int, trials: Int[Tensor, "..."], confidence: float = 0.95
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]: ...
def wilson_interval(
    successes: int | Int[Tensor, "..."], trials: int | Int[Tensor, "..."], confidence: float = 0.95
) -> tuple[float, float] | tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    """Wilson's score interval for the probability of success, from k successes in n trials.

    The ends are the roots π of (k/n − π)² = z² π (1 − π) / n, where z is the normal quantile at (1 + confidence) / 2.
    They never leave [0, 1], and the interval does not vanish at k = 0 or k = n.

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference", Journal of the
    American Statistical Association 22 (1927), 209–212. No continuity correction.

    Args:
        successes: Successes k, an int or a tensor of ints of any shape.
        trials: Trials n, an int or a tensor that broadcasts with `successes`.
        confidence: Probability that the interval covers, between 0 and 1.

    Returns:
        Lower and upper end: floats for ints, float64 tensors of the broadcast shape if either is a tensor.

    Raises:
        ValueError: Trials below 1, successes below 0 or above trials, shapes that do not broadcast, or a confidence
            outside (0, 1).
    """
    if not 0 < confidence < 1:
        raise wrong_value("confidence", confidence, "a number between 0 and 1")
    count, total = _as_counts(successes, trials)
    if (total < 1).any():
        raise wrong_value("trials", trials, "at least 1")
    if (count < 0).any() or (count > total).any():
        raise wrong_value("successes", successes, f"from 0 to trials, {trials!r}")
    half = NormalDist().inv_cdf((1 + confidence) / 2) ** 2 / (2 * total)
    lower = _lower_end(count / total, half)
    # The upper end mirrors the lower one of the failures; so 0 and 1 come out exactly.
    upper = 1 - _lower_end((total - count) / total, half)
    if isinstance(successes, Tensor) or isinstance(trials, Tensor):
        return lower, upper
    return lower.item(), upper.item()


def _lower_end(share: Float[Tensor, "*counts"], half: Float[Tensor, "*counts"]) -> Float[Tensor, "*counts"]:
    """Smaller root, from the product of the roots, with half = z² / 2n: no difference of nearly equal numbers."""
    return share**2 / (share + half + torch.sqrt(half**2 + 2 * half * share * (1 - share)))


def _as_counts(successes: int | Tensor, trials: int | Tensor) -> tuple[Tensor, Tensor]:
    device = next((given.device for given in (successes, trials) if isinstance(given, Tensor)), None)
    count = torch.as_tensor(successes, dtype=torch.float64, device=device)
    total = torch.as_tensor(trials, dtype=torch.float64, device=device)
    try:
        shape = torch.broadcast_shapes(count.shape, total.shape)
    except RuntimeError as error:
        raise wrong_shape("trials", total.shape, f"one that broadcasts with successes, {tuple(count.shape)}") from error
    return count.expand(shape), total.expand(shape)
