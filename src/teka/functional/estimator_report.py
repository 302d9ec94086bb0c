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
# The truth is the mean of the values itself when it is as near as this, in float64: there is nothing to collapse from.
INDISTINCT = 1e-9


@dataclass(frozen=True)
class EstimatorReport:
    """Errors of an estimated attention output, relative to the norm of the exact one.

    Args:
        error: ‖estimate − exact‖ / ‖exact‖.
        error_of_mean: ‖mean of V − exact‖ / ‖exact‖: what predicting the plain mean would score.
        spread: ‖estimate − mean of V‖ / ‖exact − mean of V‖, near 1 for a sound estimate and 0 for a collapsed one; 1
            where the exact output is the mean of V.
    """

    error: float
    error_of_mean: float
    spread: float

    @classmethod
    def from_outputs(
        cls,
        estimate: Float[Tensor, "*shape"],
        exact: Float[Tensor, "*shape"],
        mean: Float[Tensor, "..."],
    ) -> "EstimatorReport":
        """The errors of an output, over all entries.

        Args:
            estimate: The estimated output, in float64.
            exact: The exact output.
            mean: The mean of the values that each query sees, of a shape that broadcasts to the outputs'.
        """
        size, distance = exact.norm().clamp_min(torch.finfo(exact.dtype).tiny), (exact - mean).norm()
        is_distinct = bool(distance > INDISTINCT * size)
        return cls(
            error=float((estimate - exact).norm() / size),
            error_of_mean=float(distance / size),
            spread=float((estimate - mean).norm() / distance) if is_distinct else 1.0,
        )

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
    return EstimatorReport.from_outputs(estimate, exact, value.mean(dim=2, keepdim=True))
