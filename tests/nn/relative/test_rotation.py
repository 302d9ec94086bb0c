import math

import pytest
import torch
from torch.nn import Parameter

from teka import functional
from teka.nn import Rotation


def test_it_gives_the_kernel_with_its_parameters():
    relative = Rotation(2, 3, 5)
    kernel = relative()
    assert isinstance(kernel, functional.Rotation)
    assert kernel.frequency is relative.frequency
    assert kernel.cosine_weight is relative.cosine_weight
    assert kernel.sine_weight is relative.sine_weight
    assert kernel.scale == pytest.approx(1 / math.sqrt(5 + 2 * 2 * 4))


def test_it_begins_as_the_paper_has_it():
    torch.manual_seed(0)
    relative = Rotation(3, 50, 5)
    assert relative.frequency.tolist() == pytest.approx([1, 0.3536, 0.125, 0.0442], abs=1e-4)
    for weight in (relative.cosine_weight.detach(), relative.sine_weight.detach()):
        assert weight.shape == (50, 3, 4)
        assert float(weight.mean()) == pytest.approx(0, abs=0.15)
        assert float(weight.std()) == pytest.approx(1, abs=0.1)
    assert not torch.equal(relative.cosine_weight, relative.sine_weight)


def test_frequencies_can_be_shared():
    frequency = Parameter(torch.tensor([1.0, 0.1, 0.01]))
    one, other = (Rotation(2, 3, 5, frequency=frequency) for _ in range(2))
    assert one.frequency is other.frequency
    assert one.cosine_weight.shape == (3, 2, 3)
    assert not torch.equal(one.cosine_weight, other.cosine_weight)


def test_the_number_of_frequencies_is_an_option():
    assert Rotation(2, 3, 5, num_frequencies=2).frequency.shape == (2,)


@pytest.mark.parametrize(
    ("arguments", "message"), [((0, 3, 4), "num_axes is 0"), ((2, 0, 4), "heads is 0"), ((2, 3, 0), "num_frequencies")]
)
def test_a_size_below_one_is_refused(arguments: tuple[int, int, int], message: str):
    num_axes, heads, num_frequencies = arguments
    with pytest.raises(ValueError, match=message):
        Rotation(num_axes, heads, 5, num_frequencies=num_frequencies)


def test_a_shared_parameter_that_is_no_vector_is_refused():
    with pytest.raises(ValueError, match=r"frequency has shape \(2, 2\), expected \(scales,\)"):
        Rotation(2, 3, 5, frequency=Parameter(torch.ones(2, 2)))


@pytest.mark.parametrize("weight_scale", [0.0, 0.1, 3.0])
def test_the_size_of_the_first_weights_is_an_option(weight_scale: float):
    weights = []
    for scale in (1.0, weight_scale):
        torch.manual_seed(0)
        relative = Rotation(2, 3, 5, weight_scale=scale)
        weights.append(torch.stack([relative.cosine_weight, relative.sine_weight]))
    assert torch.allclose(weights[1], weight_scale * weights[0])


@pytest.mark.parametrize("weight_scale", [-1.0, math.inf, math.nan])
def test_a_size_that_cannot_be_is_refused(weight_scale: float):
    with pytest.raises(ValueError, match=f"weight_scale is {weight_scale}, expected a finite number of at least 0"):
        Rotation(2, 3, 5, weight_scale=weight_scale)
