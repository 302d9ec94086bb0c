import math

import pytest
import torch

from teka.functional import relative
from teka.nn.relative import Fourier


@pytest.mark.parametrize("num_axes", [1, 3])
def test_it_begins_with_waves_of_2_to_64_units_alike_on_a_logarithmic_scale(num_axes: int):
    torch.manual_seed(0)
    kernel = Fourier(num_axes, 300, num_waves=5)()
    assert isinstance(kernel, relative.Fourier)
    assert kernel.frequency.shape == (300, 5, num_axes)
    octaves = torch.log2(2 * math.pi / kernel.frequency.detach().norm(dim=-1))
    assert float(octaves.min()) == pytest.approx(1, abs=0.1)
    assert float(octaves.max()) == pytest.approx(6, abs=0.1)
    assert float(octaves.mean()) == pytest.approx(3.5, abs=0.1)


@pytest.mark.parametrize("num_waves", [1, 4, 7])
def test_it_begins_mild_with_its_peak_at_the_query(num_waves: int):
    kernel = Fourier(2, 3, num_waves=num_waves)()
    assert torch.allclose(kernel.log_at(torch.zeros(1, 2)).exp(), torch.full((3, 1), 3.0))
    elsewhere = kernel.log_at(20 * torch.randn(200, 2)).exp().detach()
    assert float(elsewhere.min()) > 1 - 1e-5
    assert float(elsewhere.max()) < 3 + 1e-5


def test_its_parameters_have_plain_names_and_gradients():
    module = Fourier(2, 3)
    assert set(module.state_dict()) == {"frequency", "phase", "raw_constant_weight", "raw_amplitude"}
    module().log_at(torch.randn(7, 2)).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.all() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("sizes", "message"), [((0, 3, 3), "num_axes is 0"), ((2, 0, 3), "heads is 0"), ((2, 3, 0), "num_waves is 0")]
)
def test_a_size_below_one_is_refused(sizes: tuple[int, int, int], message: str):
    with pytest.raises(ValueError, match=message):
        Fourier(sizes[0], sizes[1], num_waves=sizes[2])


def test_its_first_waves_and_their_weight_are_options():
    torch.manual_seed(0)
    kernel = Fourier(2, 300, num_waves=5, longest_wave=16.0, shortest_wave=4.0, wave_weight=2.5)()
    octaves = torch.log2(2 * math.pi / kernel.frequency.detach().norm(dim=-1))
    assert float(octaves.min()) == pytest.approx(2, abs=0.05)
    assert float(octaves.max()) == pytest.approx(4, abs=0.05)
    total = kernel.amplitude.sum(dim=-1) / kernel.constant_weight
    assert torch.allclose(total, torch.full_like(total, 2.5))
    assert torch.allclose(kernel.log_at(torch.zeros(1, 2)).exp(), torch.full((300, 1), 6.0))


def test_one_length_for_all_waves_is_possible():
    kernel = Fourier(2, 3, longest_wave=7.0, shortest_wave=7.0)()
    length = 2 * math.pi / kernel.frequency.norm(dim=-1)
    assert torch.allclose(length, torch.full_like(length, 7.0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shortest_wave": 0.0}, "shortest_wave is 0.0, expected a positive finite number"),
        ({"longest_wave": 1.0}, "longest_wave is 1.0, expected finite and at least shortest_wave = 2"),
        ({"longest_wave": math.inf}, "longest_wave is inf, expected finite"),
        ({"wave_weight": 0.0}, "wave_weight is 0.0, expected a positive finite number"),
        ({"wave_weight": math.nan}, "wave_weight is nan, expected a positive finite number"),
    ],
    ids=str,
)
def test_waves_that_cannot_be_are_refused(options: dict[str, float], message: str):
    with pytest.raises(ValueError, match=message):
        Fourier(2, 3, num_waves=4, **options)
