"""Low-pass filters that prevent aliasing when an image or another grid is downsampled."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import gelu

from teka.checks import is_integer
from teka.errors import wrong_value
from teka.nn.local_conv import CONVOLUTIONS, pad_axis

MAX_BLUR = 255


class OversampledGELU(nn.Module):
    """Anti-aliased GELU, which is computed on a grid twice as fine and then low-pass filtered.

    A GELU creates high frequencies. On the original grid, frequencies above the Nyquist frequency
    alias, so that the output no longer moves with the input. The finer grid can represent most of
    them, and the filter removes them. Shifts by whole pixels stay exact, and fractional shifts
    become nearly exact. All axes must be periodic.

    Source: Karras et al. 2021 (StyleGAN3); Michaeli et al. 2023; Michaeli & Soudry 2025
    (arXiv 2510.22673).

    >>> import torch
    >>> from teka.nn.sampling import OversampledGELU
    >>> activation, inputs = OversampledGELU(), torch.randn(1, 2, 8, 8)
    >>> torch.allclose(activation(inputs.roll(3, 2)), activation(inputs).roll(3, 2), atol=1e-5)
    True
    """

    def forward(
        self, inputs: Float[Tensor, "batch channels *sides"]
    ) -> Float[Tensor, "batch channels *sides"]:
        matrices = [interpolation_matrix(side, 2).to(inputs) for side in inputs.shape[2:]]
        outputs = inputs
        for axis, matrix in enumerate(matrices, 2):
            outputs = multiply_along_axis(outputs, matrix, axis)
        outputs = gelu(outputs)
        for axis, matrix in enumerate(matrices, 2):
            outputs = multiply_along_axis(outputs, matrix.mT / 2, axis)
        return outputs


def interpolation_matrix(side: int, factor: int) -> Float[Tensor, "fine side"]:
    """Return the matrix that interpolates a periodic signal to a grid `factor` times as fine.

    The interpolation is trigonometric. It drops the Nyquist frequency of a signal with an even
    number of samples. The transposed matrix, divided by `factor`, maps the fine grid back.
    """
    spectrum = torch.fft.rfft(torch.eye(side, dtype=torch.float64, device="cpu"), dim=0)
    below_nyquist = spectrum[: (side + 1) // 2]
    return factor * torch.fft.irfft(below_nyquist, n=factor * side, dim=0)


def multiply_along_axis(inputs: Tensor, matrix: Float[Tensor, "to side"], axis: int) -> Tensor:
    """Multiply a matrix by every vector of a tensor along one axis."""
    return (inputs.movedim(axis, -1) @ matrix.mT).movedim(-1, axis)


def check_blur(blur: int | str | None, periodic: bool) -> int | str | None:
    """Check the option `blur` of a sampling layer (the width of a low-pass filter), and return it.

    It must be None, an odd number of pixels, or "ideal" if all axes are periodic.
    """
    if blur is None or (is_integer(blur) and 1 <= blur <= MAX_BLUR and blur % 2 == 1):
        return blur
    if not isinstance(blur, str) or blur != "ideal" or not periodic:
        expected = f"None, an odd number of cells up to {MAX_BLUR}, or on periodic axes 'ideal'"
        raise wrong_value("blur", blur, expected)
    return blur


def apply_low_pass(
    inputs: Float[Tensor, "batch channels *sides"],
    blur: int | str | None,
    stride: Sequence[int],
    periodic: bool,
) -> Float[Tensor, "batch channels *sides"]:
    """Apply a low-pass filter along the axes whose stride is above 1.

    Args:
        inputs: Images or other grids.
        blur: None for no filter, the width of a binomial filter (Zhang 2019), or "ideal" to
            keep the frequencies below the Nyquist frequency after sampling.
        stride: Stride of the sampling along each axis.
        periodic: If True, the filter wraps around. Otherwise, the grid is padded with zeros.
    """
    if blur is None:
        return inputs
    if blur == "ideal":
        return _ideal_low_pass(inputs, stride)
    assert isinstance(blur, int)
    weights = [math.comb(blur - 1, index) / 2 ** (blur - 1) for index in range(blur)]
    kernel = torch.tensor(weights, dtype=inputs.dtype, device=inputs.device)
    num_axes = inputs.ndim - 2
    channels = inputs.shape[1]
    for axis, step in enumerate(stride):
        if step == 1:
            continue
        padded = pad_axis(inputs, 2 + axis, blur // 2, periodic=periodic)
        shape = [1] * num_axes
        shape[axis] = blur
        weight = kernel.view(1, 1, *shape).expand(channels, 1, *shape)
        inputs = CONVOLUTIONS[num_axes](padded, weight, groups=channels)
    return inputs


def _ideal_low_pass(inputs: Tensor, stride: Sequence[int]) -> Tensor:
    if inputs.shape[0] == 0:  # The FFT on a CPU refuses an empty batch.
        return inputs
    axes = tuple(range(2, inputs.ndim))
    spectrum = torch.fft.rfftn(at_least_float32(inputs), dim=axes)
    for axis, step in zip(axes, stride, strict=True):
        if step == 1:
            continue
        side = inputs.shape[axis]
        frequency = torch.fft.fftfreq(side, 1 / side, device=inputs.device).abs()
        is_kept = frequency[: spectrum.shape[axis]] < side / step / 2
        spectrum = spectrum * is_kept.to(spectrum.dtype).view(-1, *(1,) * (axes[-1] - axis))
    return torch.fft.irfftn(spectrum, s=inputs.shape[2:], dim=axes).to(inputs.dtype)


def at_least_float32(inputs: Tensor) -> Tensor:
    """Convert half-precision inputs to float32, and return float32 and float64 unchanged."""
    return inputs if inputs.dtype == torch.float64 else inputs.float()
