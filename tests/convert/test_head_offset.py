from typing import Any

import pytest
import torch
from tests.convert.convolutions import draw_convolution

from teka import Grid
from teka.convert import attention_from_convolution, head_offsets
from teka.nn import Attention, Quadratic, Table
from teka.nn.waves import RelativeModule, inverse_softplus


def build(relative: str | RelativeModule, heads: int = 2, **options: Any) -> Attention:
    return Attention(6, heads, **{"kernel": "constant", "relative": relative, "num_axes": 2, **options})


def quadratic(centers: list[list[float]], precision: float) -> Quadratic:
    module = Quadratic(len(centers[0]), len(centers))
    with torch.no_grad():
        module.center.copy_(torch.tensor(centers))
        module.raw_precision.copy_(inverse_softplus(torch.full((len(centers),), precision)))
    return module


def test_every_query_that_sees_the_place_gives_it_at_least_that_share():
    relative, grid = quadratic([[1.2, -2.1], [0.0, 0.4]], 3.0), Grid((7, 9))
    found = head_offsets(build(relative), grid)
    assert [one.offset for one in found] == [(1, -2), (0, 0)]
    log_kernel = relative().log_at(-(grid.positions()[None] - grid.positions()[:, None]))
    weights = torch.softmax(log_kernel, dim=-1).detach().unflatten(1, grid.shape).unflatten(3, grid.shape)
    inner = weights[0, 2, 5, 3, 3], weights[1, 3, 4, 3, 4]
    for one, weight in zip(found, inner, strict=True):
        assert one.share == pytest.approx(float(weight), abs=1e-6)
    assert float(weights[0, 0, 2, 1, 0]) >= found[0].share


@pytest.mark.parametrize("spacing", [1.0, (0.5, 2.0)])
def test_offsets_are_counted_in_cells(spacing: float | tuple[float, ...]):
    layer = attention_from_convolution(draw_convolution(2, 3), spacing=spacing)
    found = head_offsets(layer.attention, Grid((5, 6), spacing))
    assert [one.offset for one in found] == [(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)]
    assert all(one.share == 1.0 for one in found)


def test_it_reads_any_relative_kernel_of_the_offset_alone():
    table = Table(2, 2, max_offset=3)
    with torch.no_grad():
        table.tables.zero_()
        # Entry 3 + Δ with Δ = query less key: a key 2 cells below the query and 1 to its left.
        table.tables[0, 0, 3 - 2] = table.tables[0, 1, 3 + 1] = 50
    first, second = head_offsets(build(table), Grid((5, 6)))
    assert first.offset == (2, -1)
    assert first.share == pytest.approx(1.0)
    assert second.share < 0.02
    for name in ("generalized_quadratic", "rotation", "fourier"):
        assert all(0 < one.share < 1 for one in head_offsets(build(name), Grid((5, 6))))


@pytest.mark.parametrize(
    ("layer", "grid", "message"),
    [
        (build("quadratic", kernel="softmax"), Grid((5, 6)), "2 heads that look at content.*expected attention by pos"),
        (build("clipped", position_heads=0), Grid((5, 6)), "or a relative kernel that does"),
        (build("quadratic", position_heads=1), Grid((5, 6)), "attention.position_heads is 1, expected 0"),
        (Attention(6, 2, kernel="constant", relative=None), Grid((5, 6)), "attention.relative is None"),
        (build("quadratic"), Grid((5, 6), periodic=True), "expected a grid with edges"),
        (build("quadratic"), Grid(5), r"relative.center has shape \(2, 2\), expected \(2, 1\)"),
    ],
)
def test_layers_without_an_offset_for_each_head_are_refused(layer: Attention, grid: Grid, message: str):
    with pytest.raises(ValueError, match=message):
        head_offsets(layer, grid)
