"""p-values of many tests, adjusted for their number."""

import torch
from jaxtyping import Float
from torch import Tensor


def holm_adjust(p_values: Float[Tensor, " tests"]) -> Float[Tensor, " tests"]:
    """Holm's adjusted p-values: those below α are right together, but for a probability of α, however tests depend.

    Of m sorted p-values, the i-th becomes the largest of min(1, (m − j + 1) p_(j)) over j ≤ i.

    Source: Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6
    (1979), 65–70.

    Args:
        p_values: One p-value for each test.

    Returns:
        The adjusted ones, in the order given.
    """
    ordered, order = p_values.sort()
    factors = torch.arange(len(p_values), 0, -1)
    adjusted = torch.empty_like(p_values)
    adjusted[order] = (ordered * factors).clamp(max=1.0).cummax(dim=0).values
    return adjusted
