"""The convolutions that attention can be: their matrices, the nearest of a lower rank, and bounds of the error."""

import copy
import math
from collections.abc import Sequence
from operator import attrgetter

import torch
from jaxtyping import Float
from torch import Tensor, nn

from teka.checks import check_number, check_sizes, is_number, is_positive
from teka.errors import wrong_value
from teka.grid import Grid
from teka.nn.local_conv import CONVOLUTION_MODULES

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
# α s² from which on e^(−α s²) is 0, in float64 too, whose last number above 0 is e^−744.4: the limit α → ∞ is reached.
HARD_PRECISION = 800.0
# Roundings of an output beside those of the sum of products: of weights, their sum and the quotient.
FURTHER_ROUNDINGS = 8
PADDING_MODES = ("zeros", "circular")
HALVINGS = 100


def check_same_convolution(convolution: nn.Module) -> Convolution:
    """The convolution, if every output cell sees a window of odd sides about it, of any stride, dilation and groups."""
    # isinstance would let a derived class in, whose weights may mean something else.
    if type(convolution) not in CONVOLUTION_MODULES.values():
        expected = "a torch.nn.Conv1d, Conv2d or Conv3d itself"
        raise wrong_value("convolution", type(convolution).__name__, expected)
    assert isinstance(convolution, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    for name, right, expected in (
        ("kernel_size", all(side % 2 for side in convolution.kernel_size), "odd sizes"),
        ("weight.dtype", convolution.weight.is_floating_point(), "a real floating-point dtype"),
        (
            "padding_mode",
            convolution.padding_mode in PADDING_MODES,
            " or ".join(map(repr, PADDING_MODES)),
        ),
    ):
        if not right:
            raise wrong_value(f"convolution.{name}", attrgetter(name)(convolution), expected)
    if convolution.padding != "same" and tuple(convolution.padding) != window_reach(convolution):
        expected = f"'same', or {window_reach(convolution)} for this kernel"
        raise wrong_value("convolution.padding", convolution.padding, expected)
    return convolution


def cell_spacing(spacing: float | Sequence[float], num_axes: int) -> tuple[float, ...]:
    """Return the distance between neighboring cells along every axis, given one number or one for each axis."""
    if isinstance(spacing, Sequence) and len(spacing) != num_axes:
        raise wrong_value(
            "spacing", spacing, f"one positive number, or one for each of {num_axes} axes"
        )
    return Grid((1,) * num_axes, spacing).spacing


def window_reach(convolution: Convolution) -> tuple[int, ...]:
    """Cells from the middle of the window to its edge along every axis, (K − 1)/2 · dilation."""
    sides = zip(convolution.kernel_size, convolution.dilation, strict=True)
    return tuple(side // 2 * step for side, step in sides)


def offset_matrices(convolution: Convolution) -> Float[Tensor, "offsets out_channels in_channels"]:
    """The matrix W_h of every offset of the window, in row-major order, in float64; 0 between groups."""
    of_groups = (
        convolution.weight.detach()
        .to(torch.float64)
        .flatten(2)
        .permute(2, 0, 1)
        .chunk(convolution.groups, dim=1)
    )
    blocks = zip(*(one.unbind() for one in of_groups), strict=True)
    return torch.stack([torch.block_diag(*one) for one in blocks])


def factor_matrices(
    matrices: Float[Tensor, "heads out_channels in_channels"], dim_head: int, *, epsilon: float
) -> tuple[Float[Tensor, "heads width in_channels"], Float[Tensor, "heads out_channels width"]]:
    """V_h and O_h of at most dim_head numbers with W_h = O_h V_h; a rank above D_h = dim_head is a ValueError.

    One is the identity if D_h ≥ D_out or D_in; else they have the singular values above epsilon max(D_in, D_out) σ_1.
    """
    heads, num_out, num_in = matrices.shape
    if dim_head >= num_out:
        return matrices, torch.eye(num_out).to(matrices).expand(heads, -1, -1)
    if dim_head >= num_in:
        return torch.eye(num_in).to(matrices).expand(heads, -1, -1), matrices
    left, sizes, right = torch.linalg.svd(matrices, full_matrices=False)
    rank = (sizes > epsilon * max(num_in, num_out) * sizes[:, :1]).sum(dim=1)
    highest = int(rank.argmax())
    if rank[highest] > dim_head:
        expected = (
            f"at least {int(rank[highest])}, the rank of the weights at offset {highest} of the kernel; "
            "teka.convert.low_rank_convolution gives the nearest convolution of a lower rank"
        )
        raise wrong_value("dim_head", dim_head, expected)
    root = sizes[:, :dim_head].sqrt()
    return root[..., None] * right[:, :dim_head], left[..., :dim_head] * root[:, None]


def low_rank_convolution(convolution: nn.Module, rank: int) -> tuple[Convolution, float]:
    """Approximate a convolution by one whose matrix at every offset has at most a given rank.

    Heads of size D_h can represent matrices of rank D_h or less. The result is nearest in the Frobenius
    norm. The relative error ‖W − W'‖ / ‖W‖ is the root mean square error of the outputs over their root
    mean square without bias, for inputs that are independent with mean 0 and equal variance.

    Source: Eckart & Young 1936; Cordonnier et al. 2020, §3.1.

    >>> import torch, teka
    >>> convolution = torch.nn.Conv2d(8, 8, 3, padding=1)
    >>> smaller, error = teka.convert.low_rank_convolution(convolution, 4)
    >>> 0 < error < 1
    True

    Args:
        convolution: A convolution that `attention_from_convolution` supports. It does not change.
        rank: Largest rank.

    Returns:
        The approximation and its relative error.

    Raises:
        ValueError: An unsupported convolution, or a rank below 1.
    """
    convolution = check_same_convolution(convolution)
    check_sizes({"rank": rank})
    if convolution.groups > 1:
        raise wrong_value(
            "convolution.groups", convolution.groups, "1, for the rank of a matrix of all channels"
        )
    left, sizes, right = torch.linalg.svd(offset_matrices(convolution), full_matrices=False)
    nearest = (left[..., :rank] * sizes[:, None, :rank]) @ right[:, :rank]
    result = copy.deepcopy(convolution)
    with torch.no_grad():
        result.weight.copy_(nearest.permute(1, 2, 0).unflatten(2, convolution.kernel_size))
    total = float(sizes.square().sum())
    return result, (float(sizes[:, rank:].square().sum()) / total) ** 0.5 if total else 0.0


def check_precision(precision: float) -> None:
    """Check that a precision is a positive number that a float can hold, or math.inf."""
    if isinstance(precision, float) and precision == math.inf:
        return
    expected = "a positive number, or math.inf"
    check_number("precision", precision, expected, low=0.0, exclude=(0.0,))


def hard_precision(spacing: Sequence[float]) -> float:
    """The precision α at which every weight off a head's centre is 0 in floating point, for cells s apart."""
    if not isinstance(spacing, Sequence) or not spacing or not all(map(is_positive, spacing)):
        raise wrong_value("spacing", spacing, "a positive finite number for each axis")
    return HARD_PRECISION / min(spacing) ** 2


def stray_weight(precision: float, spacing: Sequence[float]) -> float:
    """Bound of the share of a head's weight that lies off its centre, where the centre is a cell, for α = `precision`.

    1 − Π_a 1/ϑ(α s_a²) with ϑ(t) = Σ_m e^(−t m²) ≤ 1 + 2e^−t / (1 − e^−3t), since m² ≥ 1 + 3(m − 1). It is the share on
    the unbounded lattice, but for that last step, which adds less than 2e^(−7t) to ϑ for t ≥ 1; α may be math.inf.

    Source: derived in docs/attention_as_convolution.md; the limit is Cordonnier et al. 2020, Lemma 2.
    """
    check_precision(precision)
    hard_precision(spacing)  # checks it
    steepness = [precision * step * step for step in spacing]
    return -math.expm1(
        -sum(math.log1p(2 * math.exp(-one) / -math.expm1(-3 * one)) for one in steepness)
    )


def precision_for_tolerance(tolerance: float, spacing: Sequence[float]) -> float:
    """Return the smallest precision α for which twice the stray weight is at most a tolerance.

    Outputs then differ from those of the convolution by at most tolerance · max|x| · max_o Σ|W_o|.

    >>> import teka
    >>> round(teka.convert.precision_for_tolerance(1e-3, (1.0, 1.0)), 2)
    8.99

    Args:
        tolerance: Share of the largest possible output, between 0 and 2.
        spacing: Distance between neighboring cells along each axis.

    Returns:
        The precision, in units of length⁻².

    Raises:
        ValueError: An argument is out of range.
    """
    if not is_number(tolerance) or not 0 < tolerance < 2:
        raise wrong_value("tolerance", tolerance, "a number above 0 and below 2")
    high = hard_precision(spacing)
    low = 1e-9 * high
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (
            (low, middle) if 2 * stray_weight(middle, spacing) <= tolerance else (middle, high)
        )
    return high


def conversion_error_bound(
    convolution: nn.Module,
    *,
    precision: float,
    largest_input: float,
    spacing: float | Sequence[float] = 1.0,
) -> float:
    """Return an upper bound of |attention(x) − convolution(x)| over all outputs.

    The bound is the sum of three terms. Let g = max_o Σ|W_o|, the largest output for |x| ≤ 1, let N =
    D_in · ΠK be the number of products in an output, and ε the precision of the dtype:

        2 · stray weight · max|x| · g    attention outside the offset of a head
        2ε (N + 8) · max|x| · g          rounding of both sums, to first order in ε
        ε · max|b|                       rounding of the bias

    The rounding terms hold for heads of at least min(D_in, D_out) channels and for every backend
    except "fft".

    >>> import math, torch, teka
    >>> convolution = torch.nn.Conv2d(3, 4, 3, padding=1)
    >>> teka.convert.conversion_error_bound(convolution, precision=math.inf, largest_input=1.0) < 1e-4
    True

    Args:
        convolution: A convolution that `attention_from_convolution` supports.
        precision: Precision α of the heads, above 0; `math.inf` for hard heads.
        largest_input: max|x|, finite.
        spacing: Distance between neighboring cells, one for all axes or one for each.

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
    rounding = 2 * epsilon * (weight[0].numel() + FURTHER_ROUNDINGS)
    straying = 2 * stray_weight(precision, cell_spacing(spacing, weight.ndim - 2))
    return (straying + rounding) * largest_input * gain + epsilon * largest_bias
