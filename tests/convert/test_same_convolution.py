import pytest
import torch
from tests.convert.convolutions import draw_convolution
from torch import nn

from teka.convert.convolutions import check_same_convolution, offset_matrices, window_reach


class Doubled(nn.Conv2d):
    """A convolution whose weights mean something else."""


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Linear(3, 3), "convolution is 'Linear', expected a torch.nn.Conv1d, Conv2d or Conv3d itself"),
        (nn.ConvTranspose2d(3, 3, 3, padding=1), "convolution is 'ConvTranspose2d'"),
        (nn.LazyConv2d(3, 3, padding=1), "convolution is 'LazyConv2d'"),
        (Doubled(3, 3, 3, padding=1), "convolution is 'Doubled'"),
        (nn.Conv2d(3, 3, (3, 4), padding="same"), r"kernel_size is \(3, 4\), expected odd sizes"),
        (nn.Conv2d(3, 3, 3, padding=1, stride=(1, 2)), r"stride is \(1, 2\), expected 1 along every axis"),
        (nn.Conv2d(4, 4, 3, padding=1, groups=2), "groups is 2, expected 1"),
        (nn.Conv1d(3, 3, 3, padding=1, dtype=torch.complex64), "dtype is torch.complex64, expected a real"),
        (nn.Conv1d(3, 3, 3, padding=1, padding_mode="circular"), "padding_mode is 'circular', expected 'zeros'"),
        (nn.Conv1d(3, 3, 3), r"padding is \(0,\), expected 'same', or \(1,\) for this kernel"),
        (nn.Conv1d(3, 3, 3, padding="valid"), "padding is 'valid', expected 'same'"),
        (nn.Conv2d(3, 3, 5, padding=2, dilation=2), r"padding is \(2, 2\), expected 'same', or \(4, 4\)"),
    ],
    ids=lambda given: type(given).__name__ if isinstance(given, nn.Module) else "",
)
def test_other_modules_are_refused(module: nn.Module, message: str):
    with pytest.raises(ValueError, match=message):
        check_same_convolution(module)


def test_the_window_reaches_as_far_as_sides_and_dilation_say():
    assert window_reach(draw_convolution(3, (1, 3, 7), dilation=(5, 2, 1))) == (0, 2, 3)


def test_the_matrices_are_those_of_the_offsets_in_row_major_order():
    convolution = draw_convolution(2, (3, 5))
    matrices = offset_matrices(convolution)
    assert matrices.shape == (15, 4, 3)
    assert torch.equal(matrices[1 * 5 + 4], convolution.weight[:, :, 1, 4])
