"""Convolutions that attention can compute: their matrices, approximations and error bounds."""

import copy
import math
from collections.abc import Sequence
from numbers import Real

import torch
from jaxtyping import Float
from torch import Tensor, nn

from teka.checks import check_number, check_sizes, is_number, is_positive
from teka.errors import wrong_value
from teka.grid import Grid
from teka.nn.local_conv import CONVOLUTION_MODULES

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
# Smallest α s² for which e^(−α s²) is 0 in every dtype. The smallest float64 is e^−744.4.
HARD_EXPONENT = 800.0
# Rounding steps of an output besides those of its sum of products: weights, their sum, quotient.
NUM_FURTHER_ROUNDINGS = 8
PADDING_MODES = ("zeros", "circular")
NUM_BISECTIONS = 100


def check_same_convolution(convolution: nn.Module) -> Convolution:
    """Check that a convolution has odd kernel sizes and padding that keeps the size.

    Any stride, dilation and groups are allowed.
    """
    # A subclass may use its weights in another way.
    if type(convolution) not in CONVOLUTION_MODULES.values():
        expected = "a torch.nn.Conv1d, Conv2d or Conv3d itself"
        raise wrong_value("convolution", type(convolution).__name__, expected)
    assert isinstance(convolution, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    if not all(side % 2 for side in convolution.kernel_size):
        raise wrong_value("convolution.kernel_size", convolution.kernel_size, "odd sizes")
    if not convolution.weight.is_floating_point():
        dtype = convolution.weight.dtype
        raise wrong_value("convolution.weight.dtype", dtype, "a real floating-point dtype")
    if convolution.padding_mode not in PADDING_MODES:
        expected = "'zeros' or 'circular'"
        raise wrong_value("convolution.padding_mode", convolution.padding_mode, expected)
    reach = window_reach(convolution)
    if convolution.padding != "same" and tuple(convolution.padding) != reach:
        expected = f"'same', or {reach} for this kernel"
        raise wrong_value("convolution.padding", convolution.padding, expected)
    return convolution


def cell_spacing(spacing: float | Sequence[float], num_axes: int) -> tuple[float, ...]:
    """Return the distance between neighboring cells along every axis."""
    if isinstance(spacing, Sequence) and len(spacing) != num_axes:
        expected = f"one positive number, or one for each of {num_axes} axes"
        raise wrong_value("spacing", spacing, expected)
    return Grid((1,) * num_axes, spacing).spacing


def window_reach(convolution: Convolution) -> tuple[int, ...]:
    """Return the number of cells from the middle of the window to its edge along every axis."""
    sides = zip(convolution.kernel_size, convolution.dilation, strict=True)
    return tuple(side // 2 * step for side, step in sides)


def offset_matrices(convolution: Convolution) -> Float[Tensor, "offsets out_channels in_channels"]:
    """Return the matrix W_h of every offset of the window, in row-major order and float64.

    Entries between different groups are 0.
    """
    matrices = convolution.weight.detach().double().flatten(2).permute(2, 0, 1)
    groups = matrices.chunk(convolution.groups, dim=1)
    return torch.stack([torch.block_diag(*blocks) for blocks in zip(*groups, strict=True)])


def factor_matrices(
    matrices: Float[Tensor, "heads out_channels in_channels"], dim_head: int, *, epsilon: float
) -> tuple[Float[Tensor, "heads width in_channels"], Float[Tensor, "heads out_channels width"]]:
    """Return V_h and O_h with W_h = O_h V_h and at most `dim_head` values per head.

    One factor is the identity if dim_head ≥ D_out or dim_head ≥ D_in. Otherwise the factors come
    from a singular value decomposition.

    Args:
        matrices: W_h.
        dim_head: Size of a head.
        epsilon: Singular values of at most epsilon · max(D_in, D_out) · σ_1 count as 0.

    Raises:
        ValueError: A matrix has a larger rank than `dim_head`.
    """
    heads, num_out, num_in = matrices.shape
    if dim_head >= num_out:
        return matrices, torch.eye(num_out).to(matrices).expand(heads, -1, -1)
    if dim_head >= num_in:
        return torch.eye(num_in).to(matrices).expand(heads, -1, -1), matrices
    left, sizes, right = torch.linalg.svd(matrices, full_matrices=False)
    ranks = (sizes > epsilon * max(num_in, num_out) * sizes[:, :1]).sum(dim=1)
    offset = int(ranks.argmax())
    if ranks[offset] > dim_head:
        expected = f"at least {ranks[offset]}, the rank of the weights at offset {offset}"
        hint = "teka.convert.low_rank_convolution returns the nearest convolution of a lower rank."
        raise wrong_value("dim_head", dim_head, expected, hint)
    root = sizes[:, :dim_head].sqrt()
    return root[..., None] * right[:, :dim_head], left[..., :dim_head] * root[:, None]


def low_rank_convolution(convolution: nn.Module, rank: int) -> tuple[Convolution, float]:
    """Return the nearest convolution whose matrix at every offset has at most a given rank.

    Heads of size D_h represent exactly the matrices of rank ≤ D_h. The distance is the Frobenius
    norm. The convolution itself is not changed.

    >>> import torch, teka
    >>> convolution = torch.nn.Conv2d(8, 8, 3, padding=1)
    >>> nearest, error = teka.convert.low_rank_convolution(convolution, rank=8)
    >>> error
    0.0

    Args:
        convolution: A convolution that `attention_from_convolution` takes, without groups.
        rank: Largest rank.

    Returns:
        The convolution W', and the relative error ‖W − W'‖ / ‖W‖. The latter is the root mean
        square error of the outputs relative to the outputs without bias, for independent inputs of
        mean 0 and equal variance.

    Raises:
        ValueError: An unsupported convolution, or a rank below 1.

    Source: Eckart & Young 1936; Cordonnier et al. 2020, §3.1 (remark on D_h and D_out).
    """
    convolution = check_same_convolution(convolution)
    check_sizes({"rank": rank})
    if convolution.groups > 1:
        expected = "1, for the rank of a matrix of all channels"
        raise wrong_value("convolution.groups", convolution.groups, expected)
    left, sizes, right = torch.linalg.svd(offset_matrices(convolution), full_matrices=False)
    nearest = (left[..., :rank] * sizes[:, None, :rank]) @ right[:, :rank]
    result = copy.deepcopy(convolution)
    with torch.no_grad():
        result.weight.copy_(nearest.permute(1, 2, 0).unflatten(2, convolution.kernel_size))
    norm = float(sizes.norm())
    return result, float(sizes[:, rank:].norm()) / norm if norm else 0.0


def check_precision(precision: float) -> None:
    """Check that a precision is a positive finite number or math.inf."""
    if not (isinstance(precision, Real) and precision == math.inf):
        expected = "a positive number, or math.inf"
        check_number("precision", precision, expected, low=0.0, exclude=(0.0,))


def hard_precision(spacing: Sequence[float]) -> float:
    """Return the precision α at which all weights except that at the center are 0 in floating point.

    Args:
        spacing: Distance s between neighboring cells along each axis.
    """
    if not isinstance(spacing, Sequence) or not spacing or not all(map(is_positive, spacing)):
        raise wrong_value("spacing", spacing, "a positive finite number for each axis")
    return HARD_EXPONENT / min(spacing) ** 2


def stray_weight(precision: float, spacing: Sequence[float]) -> float:
    """Return a bound of the weight that a head gives to other cells than its center.

    The center must be a cell. On the unbounded lattice, with precision α and spacings s_a, the
    weight is

        1 − Π_a 1/ϑ(α s_a²),   ϑ(t) = Σ_m e^(−t m²) ≤ 1 + 2e^−t / (1 − e^−3t),

    because m² ≥ 1 + 3(m − 1) for m ≥ 1. For t ≥ 1, this adds less than 2e^(−7t) to ϑ.

    Source: derived in docs/attention_as_convolution.md; limit: Cordonnier et al. 2020, Lemma 2.
    """
    check_precision(precision)
    hard_precision(spacing)  # checks the spacing
    log_sum = 0.0
    for distance in spacing:
        exponent = precision * distance * distance
        log_sum += math.log1p(2 * math.exp(-exponent) / -math.expm1(-3 * exponent))
    return -math.expm1(-log_sum)


def precision_for_tolerance(tolerance: float, spacing: Sequence[float]) -> float:
    """Return the smallest precision α for which twice the stray weight is at most a tolerance.

    Outputs of `attention_from_convolution` then differ from those of the convolution by at most
    tolerance · max|x| · max_o Σ|W_o|, a share of the largest possible output.

    >>> import teka
    >>> round(teka.convert.precision_for_tolerance(1e-3, (1.0, 1.0)), 2)
    8.99

    Args:
        tolerance: Number above 0 and below 2.
        spacing: Distance between neighboring cells along each axis.

    Raises:
        ValueError: An argument is out of range.
    """
    if not is_number(tolerance) or not 0 < tolerance < 2:
        raise wrong_value("tolerance", tolerance, "a number above 0 and below 2")
    high = hard_precision(spacing)
    low = 1e-9 * high
    for _ in range(NUM_BISECTIONS):
        middle = math.sqrt(low * high)
        if 2 * stray_weight(middle, spacing) <= tolerance:
            high = middle
        else:
            low = middle
    return high


def conversion_error_bound(
    convolution: nn.Module,
    *,
    precision: float,
    largest_input: float,
    spacing: float | Sequence[float] = 1.0,
) -> float:
    """Return a bound of |attention(x) − convolution(x)| over all inputs up to a magnitude.

    The bound is the sum of two terms, where g = max_o Σ|W_o| is the largest output for |x| ≤ 1:

    - 2 · stray weight · max|x| · g, because heads are not hard,
    - 2ε (N + 8) max|x| · g + ε max|b|, because both layers round sums of N = D_in · ΠK products in
      a dtype with relative precision ε, to first order.

    The bound holds for heads of at least min(D_in, D_out) values and every backend except "fft".

    >>> import math, torch, teka
    >>> convolution = torch.nn.Conv2d(3, 4, 3, padding=1)
    >>> options = {"precision": math.inf, "largest_input": 1.0}
    >>> teka.convert.conversion_error_bound(convolution, **options) < 1e-4
    True

    Args:
        convolution: A convolution that `attention_from_convolution` takes.
        precision: α > 0 of the heads, math.inf for hard heads.
        largest_input: max|x|.
        spacing: Distance between neighboring cells, one number or one for each axis.

    Raises:
        ValueError: An unsupported convolution, or an argument out of range.
    """
    convolution = check_same_convolution(convolution)
    if not is_number(largest_input) or largest_input < 0:
        raise wrong_value("largest_input", largest_input, "a finite number of at least 0")
    weight = convolution.weight.detach()
    gain = float(weight.double().abs().flatten(1).sum(dim=1).max())
    largest_bias = 0.0 if convolution.bias is None else float(convolution.bias.detach().abs().max())
    epsilon = torch.finfo(weight.dtype).eps
    rounding = 2 * epsilon * (weight[0].numel() + NUM_FURTHER_ROUNDINGS)
    straying = 2 * stray_weight(precision, cell_spacing(spacing, weight.ndim - 2))
    return (straying + rounding) * largest_input * gain + epsilon * largest_bias
