"""Two shares of the same images: the interval of their difference, and the test that there is none."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor


def paired_interval(
    only_first: Int[Tensor, " shares"], only_second: Int[Tensor, " shares"], num_images: int, quantile: float
) -> tuple[Float[Tensor, " shares"], Float[Tensor, " shares"]]:
    """Bonett's and Price's interval for the difference of two shares of the same images.

    d ± z √((a + b − d²) / (N + 2)) with a = (n₁ + 1) / (N + 2), b = (n₂ + 1) / (N + 2), d = a − b, within [−1, 1]: one
    image more is counted on either side, so that the interval has a width where no image tells the two apart.

    Source: Bonett and Price, "Adjusted Wald confidence interval for a difference of binomial proportions based on
    paired data", Journal of Educational and Behavioral Statistics 37 (2012), 479–488.

    Args:
        only_first: Images n₁ that succeed for the first only.
        only_second: Images n₂ that succeed for the second only.
        num_images: Number of images N.
        quantile: z, the normal quantile at (1 + confidence) / 2, or a simultaneous critical value.

    Returns:
        Lower and upper ends of the first share less the second, float64.
    """
    first = (only_first.to(torch.float64) + 1) / (num_images + 2)
    second = (only_second.to(torch.float64) + 1) / (num_images + 2)
    difference = first - second
    half = quantile * ((first + second - difference.square()) / (num_images + 2)).sqrt()
    # With a small quantile, the images added could push the interval past what was observed.
    observed = (only_first - only_second).to(torch.float64) / num_images
    lower = (difference - half).clamp(min=-1.0).minimum(observed)
    return lower, (difference + half).clamp(max=1.0).maximum(observed)


def mcnemar_test(only_first: Int[Tensor, " shares"], only_second: Int[Tensor, " shares"]) -> Float[Tensor, " shares"]:
    """Exact two-sided p-values of McNemar's test that two shares of the same images are equal.

    Of n = n₁ + n₂ images that tell the two apart, each is as likely on one side as on the other:
    p = min(1, 2 P[X ≤ min(n₁, n₂)]) for X binomial with n and ½.

    Source: McNemar, "Note on the sampling error of the difference between correlated proportions or percentages",
    Psychometrika 12 (1947), 153–157, with the binomial in place of its approximation.

    Args:
        only_first: Images n₁ that succeed for the first only.
        only_second: Images n₂ that succeed for the second only.
    """
    total = (only_first + only_second).to(torch.float64)[:, None]
    fewer = torch.minimum(only_first, only_second)[:, None]
    terms = torch.arange(int(fewer.max()) + 1, dtype=torch.float64)
    logarithm = torch.special.gammaln(total + 1) - torch.special.gammaln(terms + 1) - total * math.log(2)
    # Where a row has fewer images than others, terms beyond them are not there.
    logarithm = logarithm - torch.special.gammaln((total - terms).clamp(min=0) + 1)
    tail = torch.where(terms <= fewer, logarithm.exp(), 0.0).sum(dim=1)
    return (2 * tail).clamp(max=1.0)
