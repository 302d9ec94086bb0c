"""Moving images by fractions of a cell, with edges that wrap round."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from teka.errors import wrong_value


def fourier_shift(
    images: Float[Tensor, "batch channels *sizes"], shift: Sequence[int | float | Tensor]
) -> Float[Tensor, "batch channels *sizes"]:
    """Images moved by the shift theorem: the trigonometric polynomial through the cells, read between them.

    X_k → X_k exp(−2πi k s / S) along every axis, for the frequencies |k| < S / 2. Where S is even, the two halves of
    the component at S / 2 turn in opposite senses, so its factor is their mean, the real number cos(π s). Of images
    without that component, and of all whose sides are odd, the moves are a group: T_s T_t = T_{s+t}, and nothing is
    lost. At whole steps all images are rolled; floats that are whole are rolled exactly.

    Args:
        images: Images (B, C, *S). Half precision is computed in float32.
        shift: One step s for each axis, in cells; tensors of no axes may carry gradients and tangents.

    Returns:
        New images (B, C, *S) of the same dtype.

    Raises:
        ValueError: Images of an integer dtype, or not one step for each axis.
    """
    _check(images, shift)
    whole = [0 if isinstance(step, Tensor) or step != math.floor(step) else int(step) for step in shift]
    moved = images.roll(whole, tuple(range(2, images.ndim)))
    for axis, (step, rolled) in enumerate(zip(shift, whole, strict=True), 2):
        if isinstance(step, Tensor) or step != rolled:
            moved = _turn(moved, step, axis)
    return moved


def bilinear_shift(
    images: Float[Tensor, "batch channels *sizes"], shift: Sequence[int | float]
) -> Float[Tensor, "batch channels *sizes"]:
    """Images moved by linear interpolation between neighbouring cells, along one axis after the other.

    (T_s x)_i = (1 − a) x_{i−⌊s⌋} + a x_{i−⌊s⌋−1} along every axis, with a = s − ⌊s⌋. At fractions this blurs: a wave of
    ω radians a cell keeps |1 − a + a exp(−iω)| of its amplitude, cos(ω / 2) at half a cell. So two moves by s are not
    one by 2 s; only whole steps lose nothing.

    Args:
        images: Images (B, C, *S).
        shift: One step s for each axis, in cells.

    Returns:
        New images (B, C, *S) of the same dtype.

    Raises:
        ValueError: Images of an integer dtype, or not one step for each axis.
    """
    _check(images, shift)
    whole = [math.floor(step) for step in shift]
    moved = images.roll(whole, tuple(range(2, images.ndim)))
    for axis, (step, rolled) in enumerate(zip(shift, whole, strict=True), 2):
        if step != rolled:
            moved = torch.lerp(moved, moved.roll(1, axis), step - rolled)
    return moved


def _turn(images: Tensor, step: float | Tensor, axis: int) -> Tensor:
    """Each frequency along one axis turned by its share of the step."""
    side = images.shape[axis]
    wide = images.to(torch.promote_types(images.dtype, torch.float32))
    frequencies = torch.arange(side // 2 + 1, dtype=torch.float64, device=images.device)
    angle = (-2 * math.pi / side) * frequencies * step
    # sin(π s) at S / 2 is left out: the mean of the two halves is real.
    sine = torch.where(frequencies * 2 == side, torch.zeros_like(angle), angle.sin())
    factor = torch.complex(angle.cos().to(wide.dtype), sine.to(wide.dtype))
    factor = factor.reshape((-1,) + (1,) * (images.ndim - axis - 1))
    return torch.fft.irfft(torch.fft.rfft(wide, dim=axis) * factor, n=side, dim=axis).to(images.dtype)


def _check(images: Tensor, shift: Sequence[object]) -> None:
    if not images.is_floating_point():
        raise wrong_value("images.dtype", images.dtype, "a real floating-point dtype, to move by fractions of a cell")
    if len(shift) != images.ndim - 2:
        raise wrong_value("shift", shift, f"a number for each of the {images.ndim - 2} axes")
