"""Checks, weight factors and error bounds for converting convolutions to attention."""

import copy
import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from teka.checks import check_name, check_number, check_sizes
from teka.errors import wrong_value
from teka.nn.local_conv import CONVOLUTION_MODULES

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
# Smallest precision α for which e^(−α) is 0 in every dtype. The smallest float64 is e^−744.4.
HARD_PRECISION = 800.0
# Additional rounding steps per output, besides its sum of products: weights, their sum, quotient.
NUM_FURTHER_ROUNDINGS = 8


def check_supported_convolution(convolution: nn.Module) -> Convolution:
    """Return a convolution, and raise an error if no attention layer can compute the same output.

    The kernel sizes must be odd, and the padding must keep the size of the input except for the
    stride. Any stride, dilation and groups are allowed.
    """
    # A subclass may use its weights in another way.
    if type(convolution) not in CONVOLUTION_MODULES.values():
        raise wrong_value(
            "convolution", type(convolution).__name__, "a torch.nn.Conv1d, Conv2d or Conv3d itself"
        )
    assert isinstance(convolution, Convolution)
    if not all(side % 2 for side in convolution.kernel_size):
        raise wrong_value("convolution.kernel_size", convolution.kernel_size, "odd sizes")
    if not convolution.weight.is_floating_point():
        raise wrong_value(
            "convolution.weight.dtype", convolution.weight.dtype, "a real floating-point dtype"
        )
    check_name("convolution.padding_mode", convolution.padding_mode, ("zeros", "circular"))
    reach = compute_kernel_radius(convolution)
    if convolution.padding != "same" and tuple(convolution.padding) != reach:
        raise wrong_value(
            "convolution.padding", convolution.padding, f"'same', or {reach} for this kernel"
        )
    return convolution


def compute_kernel_radius(convolution: Convolution) -> tuple[int, ...]:
    """Return the radius of a kernel along each axis: the cells from its center to its edge."""
    return tuple(
        side // 2 * step
        for side, step in zip(convolution.kernel_size, convolution.dilation, strict=True)
    )


def split_weight_by_offset(
    convolution: Convolution,
) -> Float[Tensor, "offsets out_channels in_channels"]:
    """Split a convolution's weight into one float64 matrix for each position in the kernel.

    Each matrix maps input channels to output channels. The positions are in row-major order.
    Entries between channels of different groups are 0.
    """
    matrices = convolution.weight.detach().double().flatten(2).permute(2, 0, 1)
    groups = matrices.chunk(convolution.groups, dim=1)
    return torch.stack([torch.block_diag(*blocks) for blocks in zip(*groups, strict=True)])


def factor_matrices(
    matrices: Float[Tensor, "heads out_channels in_channels"], rank: int
) -> tuple[Float[Tensor, "heads rank in_channels"], Float[Tensor, "heads out_channels rank"]]:
    """Factor each head's matrix into a value projection and an output projection.

    The value projection V maps the input channels to the `rank` channels of a head, and the output
    projection O maps them to the output channels. The product O V is the nearest matrix of this
    rank to the head's matrix W, in the Frobenius norm, from a singular value decomposition. If
    `rank` equals the number of output or input channels, the product is exactly W, and one factor
    is the identity.

    Args:
        matrices: The matrix of each head, shape (H, D_out, D_in).
        rank: Largest rank of the products, at most min(D_in, D_out).
    """
    heads, num_out, num_in = matrices.shape
    if rank == num_out:
        return matrices, torch.eye(num_out).to(matrices).expand(heads, -1, -1)
    if rank == num_in:
        return torch.eye(num_in).to(matrices).expand(heads, -1, -1), matrices
    left, sizes, right = torch.linalg.svd(matrices, full_matrices=False)
    root = sizes[:, :rank].sqrt()
    return root[..., None] * right[:, :rank], left[..., :rank] * root[:, None]


def low_rank_convolution(convolution: nn.Module, rank: int) -> tuple[Convolution, float]:
    """Return the nearest convolution that attention heads of size `rank` can compute exactly.

    Such a convolution has, at each position in its kernel, a matrix from input to output channels
    whose rank is at most `rank`. The nearest one has the smallest error of the weight in the
    Frobenius norm.

    >>> import torch, teka
    >>> convolution = torch.nn.Conv2d(8, 8, 3, padding=1)
    >>> nearest, error = teka.convert.low_rank_convolution(convolution, rank=8)
    >>> error
    0.0

    Args:
        convolution: A convolution that `attention_from_convolution` accepts, without groups.
        rank: Largest rank.

    Returns:
        The nearest convolution W', and the relative error ‖W − W'‖ / ‖W‖. If the inputs are
        independent with mean 0 and equal variance, this is also the root mean square error of the
        outputs, relative to the outputs without bias.

    Raises:
        ValueError: The convolution is not supported, or the rank is below 1.

    Source: Eckart & Young 1936; Cordonnier et al. 2020, §3.1 (remark on D_h and D_out).
    """
    convolution = check_supported_convolution(convolution)
    check_sizes({"rank": rank})
    if convolution.groups > 1:
        raise wrong_value(
            "convolution.groups", convolution.groups, "1, for the rank of a matrix of all channels"
        )
    matrices = split_weight_by_offset(convolution)
    values, outputs = factor_matrices(matrices, min(rank, *matrices.shape[1:]))
    nearest = outputs @ values
    result = copy.deepcopy(convolution)
    with torch.no_grad():
        result.weight.copy_(nearest.permute(1, 2, 0).unflatten(2, convolution.kernel_size))
    norm = float(matrices.norm())
    return result, float((matrices - nearest).norm()) / norm if norm else 0.0


def off_center_weight(precision: float, num_axes: int) -> float:
    """Return an upper bound on the attention weight that a head gives to keys off its center.

    The center is the offset to which the head should attend. With precision α, the attention weight
    is a Gaussian of the distance from the center. On an infinite grid with n axes, the center gets
    the weight

        (Σ_m e^(−α m²))^(−n) ≥ (Σ_m e^(−α |m|))^(−n) = tanh(α/2)^n,

    where m runs over all integers. The bound is therefore 1 − tanh(α/2)^n.

    Args:
        precision: The precision α, or math.inf.
        num_axes: Number n of axes.

    Raises:
        ValueError: The precision is not positive.

    Source: docs/attention_as_convolution.md; limit: Cordonnier et al. 2020, Lemma 2.
    """
    check_number(
        "precision", precision, "a positive number, or math.inf", low=0, high=math.inf, exclude=(0,)
    )
    check_sizes({"num_axes": num_axes})
    ratio = math.exp(-precision)
    if ratio == 1:
        return 1.0
    # tanh(α/2) = (1 − e^−α) / (1 + e^−α), without cancellation.
    return -math.expm1(num_axes * (math.log1p(-ratio) - math.log1p(ratio)))


def precision_for_tolerance(tolerance: float, num_axes: int) -> float:
    """Return the `precision` at which `attention_from_convolution` has at most a given error.

    The attention weights of a head are a Gaussian, which is narrower for a higher precision. With
    the returned precision, the outputs of the attention layer differ from those of the convolution
    by at most tolerance · g. Here g is the largest possible output of the convolution without bias:
    g = max|x| · max_o Σ|W_o|, where W_o are the weights of output channel o.

    >>> import teka
    >>> round(teka.convert.precision_for_tolerance(1e-3, num_axes=2), 2)
    8.99

    Args:
        tolerance: Largest error, relative to g: a number from 1e-100 to 1.
        num_axes: Number of axes of the convolution, for example 2 for `Conv2d`.

    Raises:
        ValueError: An argument is out of range.
    """
    check_number("tolerance", tolerance, "a number from 1e-100 to 1", low=1e-100, high=1)
    check_sizes({"num_axes": num_axes})
    # Solve tanh(α/2) = (1 − tolerance/2)^(1/n) for α, without cancellation.
    complement = -math.expm1(math.log1p(-tolerance / 2) / num_axes)
    return math.log(2 / complement - 1)


def conversion_error_bound(
    convolution: nn.Module, *, precision: float, largest_input: float
) -> float:
    """Return an upper bound on the error of `attention_from_convolution`.

    The error is the largest difference between the outputs of the convolution and of the attention
    layer, for all inputs x with |x| ≤ `largest_input`. The bound is the sum of two terms:

    - 2 · `off_center_weight` · max|x| · g, because heads also attend to tokens off their
      centers. Here g = max_o Σ|W_o| is the largest output for |x| ≤ 1 without the bias b.
    - 2ε (N + 8) max|x| · g + ε max|b|, because both layers round sums of N = D_in · ΠK products in
      a dtype with relative precision ε, to first order.

    It holds for the default head size and for every backend except "fft".

    >>> import math, torch, teka
    >>> convolution = torch.nn.Conv2d(3, 4, 3, padding=1)
    >>> options = {"precision": math.inf, "largest_input": 1.0}
    >>> teka.convert.conversion_error_bound(convolution, **options) < 1e-4
    True

    Args:
        convolution: A convolution that `attention_from_convolution` accepts.
        precision: Precision α > 0 of the heads, or math.inf if each head attends to one token.
        largest_input: Largest magnitude max|x| of the inputs.

    Raises:
        ValueError: The convolution is not supported, or an argument is out of range.
    """
    convolution = check_supported_convolution(convolution)
    check_number("largest_input", largest_input, "a finite number of at least 0", low=0)
    weight = convolution.weight.detach()
    gain = float(weight.double().abs().flatten(1).sum(dim=1).max())
    largest_bias = 0.0 if convolution.bias is None else float(convolution.bias.detach().abs().max())
    epsilon = torch.finfo(weight.dtype).eps
    rounding = 2 * epsilon * (weight[0].numel() + NUM_FURTHER_ROUNDINGS)
    straying = 2 * off_center_weight(precision, weight.ndim - 2)
    return (straying + rounding) * largest_input * gain + epsilon * largest_bias
