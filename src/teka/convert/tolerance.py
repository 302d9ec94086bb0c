"""How far attention with a finite precision is from the convolution it stands for."""

import math
from collections.abc import Sequence

import torch
from torch import nn

from teka.convert.same_convolution import check_same_convolution
from teka.errors import wrong_value
from teka.grid import Grid

# α s² from which on e^(−α s²) is 0, in float64 too, whose last number above 0 is e^−744.4: the limit α → ∞ is reached.
HARD_PRECISION = 800.0
# Roundings of an output beside those of the sum of products: of weights, their sum and the quotient.
FURTHER_ROUNDINGS = 8
HALVINGS = 100


def hard_precision(spacing: Sequence[float]) -> float:
    """The precision α at which every weight off a head's centre is 0 in floating point.

    Args:
        spacing: Distance s between neighbouring cells along every axis.
    """
    return HARD_PRECISION / min(spacing) ** 2


def stray_weight(precision: float, spacing: Sequence[float]) -> float:
    """Bound of the share of a head's weight that lies off its centre, where the centre is a cell.

    1 − Π_a 1/ϑ(α s_a²) with ϑ(t) = Σ_m e^(−t m²) ≤ 1 + 2e^−t / (1 − e^−3t), since m² ≥ 1 + 3(m − 1). It is the share on
    the unbounded lattice, but for that last step, which adds less than 2e^(−7t) to ϑ for t ≥ 1.

    Source: derived in docs/attention_as_convolution.md; the limit is Cordonnier et al. 2020, Lemma 2.

    Args:
        precision: α > 0 in units of length^−2; math.inf is the limit.
        spacing: Distance s_a between neighbouring cells along every axis.

    Raises:
        ValueError: A precision that is not positive.
    """
    if not precision > 0:
        raise wrong_value("precision", precision, "a positive number, or math.inf")
    steepness = [precision * step * step for step in spacing]
    return -math.expm1(-sum(math.log1p(2 * math.exp(-one) / -math.expm1(-3 * one)) for one in steepness))


def precision_for_tolerance(tolerance: float, spacing: Sequence[float]) -> float:
    """The least precision α, to rounding, for which twice the stray weight is at most a tolerance.

    Outputs are then within tolerance · max|x| · max_o Σ|W_o| of the convolution's, the share of the largest output that
    inputs up to max|x| can have.

    Args:
        tolerance: Between 0 and 2.
        spacing: Distance between neighbouring cells along every axis.

    Raises:
        ValueError: Another tolerance.
    """
    if not 0 < tolerance < 2:
        raise wrong_value("tolerance", tolerance, "a number above 0 and below 2")
    high = hard_precision(spacing)
    low = 1e-9 * high
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if 2 * stray_weight(middle, spacing) <= tolerance else (middle, high)
    return high


def conversion_error_bound(
    convolution: nn.Module, *, precision: float, largest_input: float, spacing: float | Sequence[float] = 1.0
) -> float:
    """Bound of |attention(x) − convolution(x)| over all outputs and all inputs up to a magnitude.

    2 · stray weight · max|x| · g, g = max_o Σ|W_o| the largest output for |x| ≤ 1, and what rounding may add to the two
    sums of N = D_in · ΠK products, 2ε (N + 8) max|x| · g + ε max|b| to first order in the dtype's ε. The latter is
    for heads of min(D_in, D_out) numbers or more and any backend but "fft", which errs by a share of its largest
    output.

    Args:
        convolution: The convolution.
        precision: α of the heads; math.inf for hard ones.
        largest_input: max|x|.
        spacing: Distance between neighbouring cells, one number or one for each axis.

    Raises:
        ValueError: A convolution that cannot be converted, a precision that is not positive, or a largest input that
            is negative or not finite.
    """
    convolution = check_same_convolution(convolution)
    if not 0 <= largest_input < math.inf:
        raise wrong_value("largest_input", largest_input, "a finite number of at least 0")
    weight = convolution.weight.detach()
    gain = float(weight.double().abs().flatten(1).sum(dim=1).max())
    largest_bias = 0.0 if convolution.bias is None else float(convolution.bias.detach().abs().max())
    epsilon = torch.finfo(weight.dtype).eps
    rounding = 2 * epsilon * (weight[0].numel() + FURTHER_ROUNDINGS)
    straying = 2 * stray_weight(precision, Grid((1,) * (weight.ndim - 2), spacing).spacing)
    return (straying + rounding) * largest_input * gain + epsilon * largest_bias
