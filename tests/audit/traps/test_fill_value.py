import pytest
import torch

from teka.audit.movement import Movement
from teka.audit.traps import fill_value


def normalised() -> torch.Tensor:
    images = torch.zeros(3, 2, 7, 11)
    images[:, :, 2:5, 3:8] = torch.rand(3, 2, 5, 3).transpose(2, 3)
    return (images - 0.1307) / 0.3081


def test_normalised_images_filled_with_zero_are_found():
    (trap,) = fill_value(normalised(), Movement("zero"))
    assert trap.severity == "limits"
    assert "100% of the border's pixels are -0.424" in trap.message
    assert "background=-0.4242" in trap.message


@pytest.mark.parametrize("mode", ["circular", "lossless"])
def test_modes_that_bring_nothing_in_have_no_fill(mode: str):
    assert fill_value(normalised(), Movement(mode)) == ()


def test_the_right_value_is_no_trap():
    images = normalised()
    assert fill_value(images, Movement("zero", background=float(images[0, 0, 0, 0]))) == ()


def test_a_channel_of_its_own_value_is_named():
    images = normalised()
    background = (float(images[0, 0, 0, 0]), 0.0)
    (trap,) = fill_value(images, Movement("zero", background=background))
    assert "(channel 1)" in trap.message


def test_natural_images_that_were_normalised_get_a_note():
    torch.manual_seed(0)
    (trap,) = fill_value(torch.randn(3, 3, 7, 11), Movement("zero"))
    assert trap.severity == "note"


def test_natural_images_in_the_unit_range_are_no_trap():
    assert fill_value(torch.rand(3, 3, 7, 11), Movement("zero")) == ()
