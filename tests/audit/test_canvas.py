import pytest
import torch

from teka.audit import paste_on_canvas
from teka.audit.canvas import canvas_window


def ramp(*sizes):
    return 1.0 + torch.arange(torch.Size((2, 3, *sizes)).numel(), dtype=torch.float64).reshape(2, 3, *sizes)


def test_the_image_lies_in_the_middle_of_its_canvas():
    images = ramp(5, 7)
    canvas = paste_on_canvas(images, (8, 11), (1.5, 2.5, 3.5))
    assert canvas.shape == (2, 3, 8, 11)
    assert torch.equal(canvas[..., 1:6, 2:9], images)
    outside = torch.ones(8, 11, dtype=torch.bool)
    outside[1:6, 2:9] = False
    for channel, value in enumerate((1.5, 2.5, 3.5)):
        assert (canvas[:, channel, outside] == value).all()


def test_one_canvas_size_serves_every_axis_and_the_dtype_stays():
    images = torch.ones(2, 1, 3, 5, dtype=torch.uint8)
    canvas = paste_on_canvas(images, 7, 255.0)
    assert canvas.shape == (2, 1, 7, 7)
    assert canvas.dtype == torch.uint8
    assert canvas[0, 0, 0, 0] == 255


@pytest.mark.parametrize("canvas_size", [(4, 9), (9, 6), (9, 9, 9), 6])
def test_a_canvas_that_does_not_hold_the_images_is_refused(canvas_size):
    with pytest.raises(ValueError, match="canvas_size is"):
        paste_on_canvas(ramp(5, 7), canvas_size)


def test_the_window_has_a_size_for_each_axis():
    assert canvas_window((5, 7), 9) == (9, 9)
    assert canvas_window((5, 7), (5, 8)) == (5, 8)
