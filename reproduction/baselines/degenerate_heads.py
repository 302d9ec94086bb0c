"""Heads whose Gaussians have degenerated: they attend to everything, or to a thin stripe."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.linalg import svdvals

from reproduction.baselines.self_attention_network import SelfAttentionNetwork
from teka.errors import wrong_argument, wrong_value
from teka.functional import GeneralizedQuadratic, Quadratic
from teka.nn.relative import RelativeModule

LARGEST_PRECISION = 1e-5
CONDITION_NUMBER = 1e5


@dataclass(frozen=True)
class DegenerateHeads:
    """Which heads of a layer have degenerated."""

    # largest eigenvalue λ of Σ⁻¹ of every head, in units of length^−2; 1/√λ is the deviation along the narrowest axis
    largest_precision: tuple[float, ...]
    condition_number: tuple[
        float, ...
    ]  # that over the smallest eigenvalue, the squared ratio of the ellipse's axes
    everywhere: tuple[int, ...]  # heads that attend to everything alike
    thin: tuple[int, ...]  # heads that attend to a thin stripe

    @property
    def num_heads(self) -> int:
        """Number of heads of the layer."""
        return len(self.condition_number)

    @property
    def prunable(self) -> tuple[int, ...]:
        """The heads that have degenerated, but for the roundest where all have: a layer needs one."""
        degenerate = sorted({*self.everywhere, *self.thin})
        if len(degenerate) == self.num_heads:
            degenerate.remove(
                min(
                    degenerate,
                    key=lambda head: (head in self.everywhere, self.condition_number[head]),
                )
            )
        return tuple(degenerate)


def degenerate_heads(
    model: SelfAttentionNetwork,
    *,
    largest_precision: float = LARGEST_PRECISION,
    condition_number: float = CONDITION_NUMBER,
) -> tuple[DegenerateHeads, ...]:
    """The heads of every layer, from the first on, whose Gaussians exp(−½ (δ − Δ)ᵀ Σ⁻¹ (δ − Δ)) have degenerated.

        λ_max(Σ⁻¹) < `largest_precision`        the head attends to everything alike
        λ_max / λ_min > `condition_number`      the head attends to a thin stripe

    For the position "quadratic" Σ⁻¹ = 2α is the same along all axes, and the first rule alone can hold. Another
    position, or content as a factor of the weights, from which alone it is not known what a head looks at, is a
    ValueError.

    Source: Cordonnier et al. 2020, A.1, with 10⁻⁵, in units of length^−2, and 10⁵; their code has 1,000 for the second.
    """
    if not largest_precision >= 0:
        raise wrong_value("largest_precision", largest_precision, "a number of at least 0")
    if not condition_number >= 1:
        raise wrong_value("condition_number", condition_number, "a number of at least 1")
    layers = []
    for attention in model.attentions():
        if attention.query is not None:
            raise wrong_argument(
                "model", "one with content", "a network whose heads attend by position alone"
            )
        eigenvalues = _eigenvalues(attention.relative)
        largest = eigenvalues.amax(dim=1)
        # Σ⁻¹ = 0 is as round as can be, and one of less than full rank as thin as can be.
        condition = (largest / eigenvalues.amin(dim=1)).nan_to_num(nan=1.0, posinf=math.inf)
        everywhere, thin = largest < largest_precision, condition > condition_number
        found = (largest, condition, everywhere.nonzero().flatten(), thin.nonzero().flatten())
        layers.append(DegenerateHeads(*(tuple(one.tolist()) for one in found)))
    return tuple(layers)


def heads_table(layers: Sequence[DegenerateHeads]) -> str:
    """Counts of the heads of every layer as a table of text, with their sums."""
    rows = [
        (
            one.num_heads,
            len(one.everywhere),
            len(one.thin),
            len(one.prunable),
            one.num_heads - len(one.prunable),
        )
        for one in layers
    ]
    sums = tuple(sum(column) for column in zip(*rows, strict=True))
    named = [*((str(number), row) for number, row in enumerate(rows, start=1)), ("all", sums)]
    lines = ["layer  heads  everywhere  thin  pruned  left"]
    lines += [
        f"{name:>5}  {a:>5}  {b:>10}  {c:>4}  {d:>6}  {e:>4}" for name, (a, b, c, d, e) in named
    ]
    return "\n".join(lines)


def _eigenvalues(relative: RelativeModule | None) -> Float[Tensor, "heads axes"]:
    """Those of Σ⁻¹, in double precision."""
    with torch.no_grad():
        kernel = None if relative is None else relative()
        if isinstance(kernel, GeneralizedQuadratic):
            # Squared singular values of L keep small eigenvalues, which rounding of LᵀL would lose.
            return svdvals(kernel.precision_factor.cpu().double()).square()
        if isinstance(kernel, Quadratic):
            alpha = kernel.precision.cpu().double()
            return (2 * alpha)[:, None].expand(-1, kernel.center.shape[1])
    name = None if kernel is None else kernel.name
    raise wrong_value("the model's relative kernel", name, "'quadratic' or 'generalized_quadratic'")
