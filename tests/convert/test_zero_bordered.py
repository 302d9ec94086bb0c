from typing import Any

import pytest
import torch
from torch.nn.functional import pad

from teka import Grid
from teka.convert import ZeroBordered
from teka.nn import Attention


def build(**options: Any) -> Attention:
    torch.manual_seed(0)
    return Attention(
        6, 3, **{"kernel": "constant", "relative": "quadratic", "context_dim": 4, "num_axes": 2, **options}
    ).double()


def draw(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_it_is_attention_on_the_larger_grid_of_which_the_inner_cells_are_kept():
    layer, images = build(dim_head=5), draw(2, 4, 5, 7)
    grid, larger = Grid((5, 7), (1.0, 0.5), origin=3.0), Grid((9, 9), (1.0, 0.5))
    found = ZeroBordered(layer, (2, 1), (1.0, 0.5))(grid.flatten(images), grid)
    context = larger.flatten(pad(images, (1, 1, 2, 2)))
    everywhere = layer(draw(2, 81, 6), larger, context=context, context_grid=larger)
    inner = larger.unflatten(everywhere)[:, :, 2:-2, 1:-1]
    assert torch.allclose(grid.unflatten(found), inner, atol=1e-13)


def test_without_a_border_it_is_the_layer():
    layer, tokens = build(context_dim=6), draw(2, 35, 6)
    found = ZeroBordered(layer, (0, 0), (1.0, 1.0))(tokens, Grid((5, 7)))
    assert torch.allclose(found, layer(tokens, Grid((5, 7))), atol=1e-14)


def test_its_state_is_that_of_the_layer_and_its_border_is_printed():
    module = ZeroBordered(build(), (2, 1), (1.0, 0.5))
    assert set(module.state_dict()) == {f"attention.{name}" for name in build().state_dict()}
    assert "border=(2, 1), spacing=(1.0, 0.5)" in repr(module)


@pytest.mark.parametrize(
    ("layer", "border", "spacing", "message"),
    [
        (build(kernel="softmax"), (1, 1), (1.0, 1.0), "attention.kernel is .*, expected one that looks at no content"),
        (build(), (1, -1), (1.0, 1.0), r"border is \(1, -1\)"),
        (build(), (1, 1), (1.0, 1.0, 1.0), "spacing is"),
    ],
)
def test_what_does_not_fit_is_refused(
    layer: Attention, border: tuple[int, ...], spacing: tuple[float, ...], message: str
):
    with pytest.raises(ValueError, match=message):
        ZeroBordered(layer, border, spacing)


@pytest.mark.parametrize(
    ("tokens", "grid", "message"),
    [
        (torch.ones(2, 35, 5).double(), Grid((5, 7)), r"tokens has shape \(2, 35, 5\), expected \(batch, tokens, 4\)"),
        (torch.ones(2, 34, 4).double(), Grid((5, 7)), r"tokens has shape \(2, 34, 4\), expected \(batch, 35"),
        (torch.ones(2, 35, 4).double(), Grid((5, 7), 2.0), r"expected a grid with edges and a spacing of \(1.0, 1.0\)"),
        (torch.ones(2, 35, 4).double(), Grid((5, 7), periodic=True), "expected a grid with edges"),
        (torch.ones(2, 35, 4).double(), Grid((5, 7, 1)), "expected a grid with edges"),
    ],
)
def test_other_tokens_and_grids_are_refused(tokens: torch.Tensor, grid: Grid, message: str, as_users_run_it: None):
    with pytest.raises(ValueError, match=message):
        ZeroBordered(build(), (2, 1), (1.0, 1.0))(tokens, grid)
