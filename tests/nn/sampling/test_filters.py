"""Low passes before sampling and around activations."""

import math

import torch
from tests.nn.sampling.test_polyphase import draw
from torch import nn

from teka.nn import PolyphaseDownsample
from teka.nn.sampling.filters import OversampledGELU


def test_a_low_pass_at_the_new_nyquist_leaves_nothing_that_a_fractional_shift_could_change():
    down = PolyphaseDownsample(2, num_axes=1, select="fixed", blur="ideal")
    inputs = draw(2, 3, 12)
    halves = torch.exp(-1j * math.pi * torch.fft.rfftfreq(6, dtype=torch.float64))
    expected = torch.fft.irfft(torch.fft.rfft(down(inputs)) * halves, n=6)
    assert (down(inputs.roll(1, 2)) - expected).abs().max() < 1e-12


def test_an_oversampled_activation_keeps_whole_shifts_and_nearly_keeps_half_ones():
    frequency = torch.fft.fftfreq(16, dtype=torch.float64)
    half = torch.exp(-1j * math.pi * frequency) * (frequency.abs() < 0.5)
    smooth = torch.fft.ifft(torch.fft.fft(draw(2, 3, 16)) * (frequency.abs() < 0.3)).real
    oversampled = OversampledGELU()
    assert (oversampled(smooth.roll(5, 2)) - oversampled(smooth).roll(5, 2)).abs().max() < 1e-12

    def error(activation: nn.Module) -> float:
        after, before = (
            torch.fft.ifft(torch.fft.fft(one) * half).real for one in (activation(smooth), smooth)
        )
        return ((activation(before) - after).norm() / after.norm()).item()

    assert error(oversampled) < error(nn.GELU()) / 3


def test_a_batch_of_nothing_has_nothing_left():
    assert PolyphaseDownsample(2, blur="ideal")(draw(0, 3, 8, 6)).shape == (0, 3, 4, 3)
