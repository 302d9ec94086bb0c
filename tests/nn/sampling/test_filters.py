"""Low-pass filters before sampling and around activations."""

import math

import torch
from torch import nn

from teka.nn import PolyphaseDownsample
from teka.nn.sampling.filters import OversampledGELU
from tests.nn.sampling.test_polyphase import draw


def test_an_ideal_low_pass_makes_fractional_shifts_exact():
    down = PolyphaseDownsample(2, num_axes=1, select="fixed", blur="ideal")
    inputs = draw(2, 3, 12)
    halves = torch.exp(-1j * math.pi * torch.fft.rfftfreq(6, dtype=torch.float64))
    expected = torch.fft.irfft(torch.fft.rfft(down(inputs)) * halves, n=6)
    assert (down(inputs.roll(1, 2)) - expected).abs().max() < 1e-12


def test_an_oversampled_activation_is_nearly_equivariant_to_half_shifts():
    frequency = torch.fft.fftfreq(16, dtype=torch.float64)
    half = torch.exp(-1j * math.pi * frequency) * (frequency.abs() < 0.5)
    smooth = torch.fft.ifft(torch.fft.fft(draw(2, 3, 16)) * (frequency.abs() < 0.3)).real
    oversampled = OversampledGELU()
    assert (oversampled(smooth.roll(5, 2)) - oversampled(smooth).roll(5, 2)).abs().max() < 1e-12

    def error(activation: nn.Module) -> float:
        shifted_output = torch.fft.ifft(torch.fft.fft(activation(smooth)) * half).real
        shifted_input = torch.fft.ifft(torch.fft.fft(smooth) * half).real
        difference = activation(shifted_input) - shifted_output
        return (difference.norm() / shifted_output.norm()).item()

    assert error(oversampled) < error(nn.GELU()) / 3


def test_an_empty_batch():
    assert PolyphaseDownsample(2, blur="ideal")(draw(0, 3, 8, 6)).shape == (0, 3, 4, 3)
