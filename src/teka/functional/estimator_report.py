"""How well random features estimate softmax attention on given tensors."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from teka.functional.attention import attention
from teka.functional.kernel import FeatureKernel
from teka.functional.relative import Relative

# An estimate has collapsed when it varies about the mean of the values less than this share of what the truth does.
COLLAPSED_SPREAD = 0.1


@dataclass(frozen=True)
class EstimatorReport:
    """Errors of an estimated attention output, relative to the norm of the exact one.

    Args:
        error: ‖estimate − exact‖ / ‖exact‖.
        error_of_mean: ‖mean of V − exact‖ / ‖exact‖: what predicting the plain mean would score.
        spread: ‖estimate − mean of V‖ / ‖exact − mean of V‖, near 1 for a sound estimate and 0 for a collapsed one.
    """

    error: float
    error_of_mean: float
    spread: float

    @property
    def collapsed(self) -> bool:
        """Whether the estimate is the mean of the values where the truth is not."""
        return self.spread < COLLAPSED_SPREAD


def estimator_report(
    query: Float[Tensor, "batch heads queries dim"],
    key: Float[Tensor, "batch heads keys dim"],
    value: Float[Tensor, "batch heads keys dim_value"],
    kernel: FeatureKernel,
    *,
    relative: Relative | None = None,
    positions: Float[Tensor, "placed axes"] | None = None,
) -> EstimatorReport:
    """Compare a kernel's attention with softmax attention on the same tensors, in float64.

    Args:
        query: Queries.
        key: Keys.
        value: Values.
        kernel: Features that estimate the softmax kernel.
        relative: Relative kernel of both, or None.
        positions: Positions of the tokens, with a relative kernel.
    """
    query, key, value = (tensor.detach().double() for tensor in (query, key, value))
    with torch.no_grad():
        exact = attention(query, key, value, kernel="softmax", relative=relative, positions=positions)
        estimate = attention(query, key, value, kernel=kernel, relative=relative, positions=positions)
    mean = value.mean(dim=2, keepdim=True)
    size, distance = exact.norm(), (exact - mean).norm()
    return EstimatorReport(
        error=float((estimate - exact).norm() / size),
        error_of_mean=float(distance / size),
        spread=float((estimate - mean).norm() / distance),
    )
