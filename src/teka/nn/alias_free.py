"""Low passes before sampling and around activations, against the frequencies that a coarser grid cannot hold."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import gelu, pad

from teka.checks import is_whole
from teka.errors import wrong_value
from teka.nn.additions import CONVOLUTIONS

WIDEST_BLUR = 255  # cells


class OversampledGELU(nn.Module):
    """GELU between two ideal resamplings: on a grid twice as fine, and what the coarse one cannot hold is left out.

    A GELU makes frequencies above Nyquist, which fold down and move otherwise than the content does. Here most of them
    fall into the doubled band and are cut. Whole shifts stay exact, fractional ones nearly so. Periodic axes only.

    Source: Karras et al. 2021 (StyleGAN3); Michaeli et al. 2023; Michaeli & Soudry 2025 (arXiv 2510.22673).
    """

    def forward(
        self, inputs: Float[Tensor, "batch channels *sides"]
    ) -> Float[Tensor, "batch channels *sides"]:
        matrices = [finer(side, 2).to(inputs) for side in inputs.shape[2:]]
        fine = inputs
        for axis, matrix in enumerate(matrices, 2):
            fine = map_axis(fine, matrix, axis)
        result = gelu(fine)
        for axis, matrix in enumerate(matrices, 2):
            result = map_axis(result, matrix.mT / 2, axis)
        return result


def finer(side: int, factor: int) -> Float[Tensor, "fine side"]:
    """Trigonometric interpolation of what lies below Nyquist to a finer grid; its transpose / factor leads back."""
    spectrum = torch.fft.rfft(torch.eye(side, dtype=torch.float64, device="cpu"), dim=0)[
        : (side + 1) // 2
    ]
    return factor * torch.fft.irfft(spectrum, n=factor * side, dim=0)


def map_axis(inputs: Tensor, matrix: Float[Tensor, "to side"], axis: int) -> Tensor:
    """A linear map along one axis."""
    return (inputs.movedim(axis, -1) @ matrix.mT).movedim(-1, axis)


def check_blur(blur: int | str | None, periodic: bool) -> int | str | None:
    """The blur, if it is one."""
    if blur is None or (is_whole(blur) and 1 <= blur <= WIDEST_BLUR and blur % 2 == 1):
        return blur
    if not isinstance(blur, str) or blur != "ideal" or not periodic:
        expected = f"None, an odd number of cells up to {WIDEST_BLUR}, or on periodic axes 'ideal'"
        raise wrong_value("blur", blur, expected)
    return blur


def blurred(
    inputs: Float[Tensor, "batch channels *sides"],
    blur: int | str | None,
    stride: Sequence[int],
    periodic: bool,
) -> Float[Tensor, "batch channels *sides"]:
    """Inputs after a low pass: a binomial filter (Zhang 2019), or what lies below the Nyquist frequency to come."""
    if blur is None:
        return inputs
    if blur == "ideal":
        return _low_pass(inputs, stride)
    assert isinstance(blur, int)
    weights = [math.comb(blur - 1, place) / 2 ** (blur - 1) for place in range(blur)]
    kernel = torch.tensor(weights, dtype=inputs.dtype, device=inputs.device)
    axes, channels, margin = inputs.ndim - 2, inputs.shape[1], blur // 2
    for axis, step in enumerate(stride):
        if step == 1:
            continue
        if (
            periodic
        ):  # by index, because circular padding does not go round a small side more than once
            side = inputs.shape[2 + axis]
            padded = inputs.index_select(
                2 + axis, torch.arange(-margin, side + margin, device=inputs.device) % side
            )
        else:
            padded = pad(inputs, [0, 0] * (axes - 1 - axis) + [margin, margin] + [0, 0] * axis)
        weight = kernel.view(1, 1, *(blur if one == axis else 1 for one in range(axes)))
        inputs = CONVOLUTIONS[axes](
            padded, weight.expand(channels, *weight.shape[1:]), groups=channels
        )
    return inputs


def _low_pass(inputs: Tensor, stride: Sequence[int]) -> Tensor:
    if len(inputs) == 0:  # of which a CPU makes no transform
        return inputs
    axes = tuple(range(2, inputs.ndim))
    spectrum = torch.fft.rfftn(at_least_float32(inputs), dim=axes)
    for axis, step in enumerate(stride):
        if step == 1:
            continue
        side = inputs.shape[2 + axis]
        frequency = torch.fft.fftfreq(side, 1 / side, device=inputs.device)[
            : spectrum.shape[2 + axis]
        ].abs()
        kept = (frequency < side / step / 2).to(spectrum.dtype)
        spectrum = spectrum * kept.view(-1, *(1,) * (len(axes) - 1 - axis))
    return torch.fft.irfftn(spectrum, s=inputs.shape[2:], dim=axes).to(inputs.dtype)


def at_least_float32(inputs: Tensor) -> Tensor:
    """The inputs in a precision that Fourier transforms and sums take."""
    return inputs if inputs.dtype == torch.float64 else inputs.float()
