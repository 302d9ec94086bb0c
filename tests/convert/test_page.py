"""Tests of the code and the numbers in docs/attention_as_convolution.md."""

import math
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from teka import Grid
from teka.convert import attention_from_convolution, low_rank_convolution
from teka.convert.conversion import BorderedAttention
from teka.convert.convolutions import off_center_weight
from tests.convert.convolutions import CLASSES

PAGE = (Path(__file__).parents[2] / "docs" / "attention_as_convolution.md").read_text(
    encoding="utf-8"
)
# kernel size, bound in float32, bound in float64
ROUNDING_ROWS = [
    (1, "3.8e-06", "7.1e-15"),
    (3, "1.9e-05", "3.6e-14"),
    (5, "5.0e-05", "9.2e-14"),
    (7, "9.5e-05", "1.8e-13"),
]
# precision, bound of the relative error, largest measured error
PRECISION_ROWS = [
    (1, "1.6e+00", "1.2e-01"),
    (2, "8.4e-01", "6.8e-02"),
    (4, "1.4e-01", "1.2e-02"),
    (8, "2.7e-03", "2.4e-04"),
    (16, "9.0e-07", "7.9e-08"),
]
# input channels, output channels, nonzero outputs, head size, predicted error, measured error
RANK_ROWS = [
    (8, 8, 8, 8, "0", "below 1e-14"),
    (8, 8, 8, 4, "0.333", "0.335"),
    (8, 8, 8, 1, "0.790", "0.792"),
    (8, 8, 4, 4, "0", "below 1e-14"),
    (3, 8, 8, 3, "0", "below 1e-14"),
]


def draw_convolution_and_images(
    kernel_size: int,
    side: int,
    channels: tuple[int, int] = (8, 8),
    dtype: torch.dtype = torch.float64,
    **options: bool,
) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    convolution = CLASSES[2](*channels, kernel_size, padding="same", dtype=dtype, **options)
    return convolution, torch.randn(1, channels[0], side, side, dtype=dtype)


@torch.no_grad()
def layer_minus_convolution(
    layer: BorderedAttention, convolution: nn.Module, images: Tensor
) -> Tensor:
    grid = Grid(tuple(images.shape[2:]))
    return grid.unflatten(layer(grid.flatten(images), grid)) - convolution(images)


def test_code_of_the_page_prints_the_stated_values(capsys: pytest.CaptureFixture[str]):
    torch.manual_seed(0)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        exec(compile(block, "attention_as_convolution.md", "exec"), names)
    hard, soft, same, first = capsys.readouterr().out.splitlines()
    assert float(hard) < 1e-5
    alpha, error, bound = map(float, soft.split())
    assert alpha == pytest.approx(8.99, abs=0.005)
    assert error <= bound < 0.05
    assert same == "True (3, 3)"
    assert re.match(r"HeadOffset\(offset=\(-1, -1\), share=0\.999\d*\)", first)


@pytest.mark.parametrize("row", ROUNDING_ROWS, ids=lambda row: f"size {row[0]}")
def test_rounding_bounds_of_hard_heads(row: tuple[int, str, str]):
    for dtype, stated in zip((torch.float32, torch.float64), row[1:], strict=True):
        convolution, images = draw_convolution_and_images(row[0], 16, dtype=dtype)
        weight = convolution.get_parameter("weight").detach()
        # The rounding error depends on the processor, but its bound does not.
        assert float(stated) == pytest.approx(
            2 * torch.finfo(dtype).eps * (weight[0].numel() + 8), rel=0.05
        )
        scale = weight.abs().flatten(1).sum(1).max() * images.abs().max()
        error = (
            layer_minus_convolution(attention_from_convolution(convolution), convolution, images)
            .abs()
            .max()
            / scale
        )
        assert float(error) <= float(stated)


@pytest.mark.parametrize("row", PRECISION_ROWS, ids=lambda row: f"precision {row[0]}")
def test_bounds_and_differences_of_soft_heads(row: tuple[int, str, str]):
    convolution, images = draw_convolution_and_images(3, 16)
    alpha = float(row[0])
    assert 2 * off_center_weight(alpha, 2) == pytest.approx(float(row[1]), rel=0.05)
    layer = attention_from_convolution(convolution, precision=alpha)
    scale = (
        convolution.get_parameter("weight").detach().abs().flatten(1).sum(1).max()
        * images.abs().max()
    )
    found = float(layer_minus_convolution(layer, convolution, images).abs().max() / scale)
    assert found == pytest.approx(float(row[2]), rel=0.05)


@pytest.mark.parametrize("row", RANK_ROWS, ids=str)
def test_errors_of_head_sizes(row: tuple[int, int, int, int, str, str]):
    num_in, num_out, kept, dim_head = row[:4]
    convolution, images = draw_convolution_and_images(3, 64, (num_in, num_out), bias=False)
    with torch.no_grad():
        convolution.get_parameter("weight")[kept:] = 0
        norm = convolution(images).norm()
    nearest, error = low_rank_convolution(convolution, dim_head)
    layer = attention_from_convolution(nearest, dim_head=dim_head)
    found = float(layer_minus_convolution(layer, convolution, images).norm() / norm)
    assert error == pytest.approx(float(row[4]), abs=5e-4)
    assert (
        found < 1e-14
        if row[5] == "below 1e-14"
        else found == pytest.approx(float(row[5]), abs=5e-4)
    )


def test_page_states_the_measured_numbers():
    stated = ROUNDING_ROWS[1][1:]
    assert [number for number in stated if number not in PAGE] == []
    rows = {tuple(re.findall(r"[^| ]+", line)) for line in PAGE.splitlines() if line[:1] == "|"}
    tested = {tuple(map(str, row)) for row in PRECISION_ROWS}
    assert len(rows & tested) == 3


def test_precision_rule_of_the_page():
    for num_axes in (1, 2, 3):
        alpha = math.log(4 * num_axes / 1e-6)
        assert 2 * off_center_weight(alpha, num_axes) == pytest.approx(1e-6, rel=1e-5)
