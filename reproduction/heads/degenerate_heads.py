"""Degenerate heads: their Gaussians attend to everything alike or to a thin stripe."""

import math

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from reproduction.baselines import SelfAttentionNetwork
from teka.checks import check_number
from teka.errors import wrong_argument, wrong_value
from teka.functional import GeneralizedQuadratic, Quadratic
from teka.nn.relative import RelativeModule

LARGEST_PRECISION = 1e-5
CONDITION_NUMBER = 1e5


def find_degenerate_heads(
    model: SelfAttentionNetwork,
    *,
    largest_precision: float = LARGEST_PRECISION,
    condition_number: float = CONDITION_NUMBER,
) -> pd.DataFrame:
    """Find the heads whose Gaussians exp(−½ (δ − Δ)ᵀ Σ⁻¹ (δ − Δ)) have degenerated.

        λ_max(Σ⁻¹) < `largest_precision`        the head attends to everything alike
        λ_max / λ_min > `condition_number`      the head attends to a thin stripe

    With position "quadratic" all eigenvalues are 2α, so that only the first rule can hold.

    Source: Cordonnier et al. 2020, A.1, with thresholds 10⁻⁵ (in length⁻²) and 10⁵. Their code has
    1,000 for the second one.

    Returns:
        A table with one row per head, indexed by layer and head. Its columns are
        "largest_precision", "condition_number", "everywhere", "thin" and "pruned". If all heads of
        a layer have degenerated, the roundest is not pruned, because a layer needs a head.

    Raises:
        ValueError: An invalid threshold, or a model whose heads are not Gaussians of position
            alone.
    """
    check_number("largest_precision", largest_precision, "a number of at least 0", low=0)
    if not condition_number >= 1:
        raise wrong_value("condition_number", condition_number, "a number of at least 1")
    layers = []
    for attention in model.attentions():
        if attention.query is not None:
            expected = "a network whose heads attend by position alone"
            raise wrong_argument("model", "one with content", expected)
        eigenvalues = _eigenvalues(attention.relative)
        largest = eigenvalues.amax(dim=1)
        condition = (largest / eigenvalues.amin(dim=1)).nan_to_num(nan=1.0, posinf=math.inf)
        heads = pd.DataFrame({"largest_precision": largest, "condition_number": condition})
        heads["everywhere"] = heads.largest_precision < largest_precision
        heads["thin"] = heads.condition_number > condition_number
        heads["pruned"] = heads.everywhere | heads.thin
        if heads.pruned.all():
            roundest = heads.sort_values(["everywhere", "condition_number"]).index[0]
            heads.loc[roundest, "pruned"] = False
        layers.append(heads)
    return pd.concat(layers, keys=range(1, len(layers) + 1), names=["layer", "head"])


def _eigenvalues(relative: RelativeModule | None) -> Float[Tensor, "heads axes"]:
    """Return the eigenvalues of Σ⁻¹ of every head in float64."""
    with torch.no_grad():
        kernel = None if relative is None else relative()
        if isinstance(kernel, GeneralizedQuadratic):
            # Σ⁻¹ = LᵀL. Squared singular values of L keep small eigenvalues that LᵀL would round.
            return torch.linalg.svdvals(kernel.precision_factor.cpu().double()).square()
        if isinstance(kernel, Quadratic):
            return 2 * kernel.precision.cpu().double()[:, None].expand_as(kernel.center)
    name = None if kernel is None else kernel.name
    raise wrong_value("the model's relative kernel", name, "'quadratic' or 'generalized_quadratic'")
