"""The exact interval for shares of successes."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

_HALVINGS = 45


def exact_interval(
    successes: Int[Tensor, " shares"], trials: int, confidence: float
) -> tuple[Float[Tensor, " shares"], Float[Tensor, " shares"]]:
    """Clopper's and Pearson's interval for the probability of success, from k successes in n trials.

    The lower end π solves P[X ≥ k] = (1 − confidence) / 2 for X binomial with n and π, the upper end mirrors the lower
    one of the failures. Never covers less often than it says, also far out in the tails, where Wilson's interval does.

    Source: Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of the binomial",
    Biometrika 26 (1934), 404–413.

    Args:
        successes: Successes k.
        trials: Trials n.
        confidence: Least probability that an interval covers, between 0 and 1.

    Returns:
        Lower and upper ends, float64.
    """
    counts, where = successes.unique(return_inverse=True)
    ends = _lower_end(torch.cat([counts, trials - counts]), trials, (1 - confidence) / 2)
    return ends[: len(counts)][where], 1 - ends[len(counts) :][where]


def _lower_end(counts: Int[Tensor, " shares"], trials: int, tail: float) -> Float[Tensor, " shares"]:
    # Beyond π terms fall, and within twelve standard deviations, each at most √n / 2, to nothing.
    reach = min(trials, math.ceil(6 * math.sqrt(trials)) + 40)
    terms = (counts[:, None] + torch.arange(reach + 1)).to(torch.float64)
    exists = terms <= trials
    terms = terms.clamp(max=trials)
    coefficient = math.lgamma(trials + 1) - torch.special.gammaln(terms + 1) - torch.special.gammaln(trials - terms + 1)
    below = torch.zeros(len(counts), dtype=torch.float64)
    above = counts.to(torch.float64) / trials
    for _ in range(_HALVINGS):
        middle = (below + above) / 2
        share = middle[:, None]
        logarithm = coefficient + torch.xlogy(terms, share) + torch.xlogy(trials - terms, 1 - share)
        is_low = torch.where(exists, logarithm.exp(), 0.0).sum(dim=1) < tail
        below, above = torch.where(is_low, middle, below), torch.where(is_low, above, middle)
    # No success is never too few; π = 0 makes it certain.
    return torch.where(counts == 0, 0.0, below)
