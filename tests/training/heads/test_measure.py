import math

import pytest
import torch

from teka import Grid
from teka.functional import relative
from teka.functional.placement import Placement, Sites
from teka.models import SelfAttentionNetwork
from teka.nn import EmbeddedTable, Quadratic
from teka.training.heads.measure import Heads, heads_of, look, middle_query

GRID = Grid((11, 13))


def sharp(*centers: tuple[float, float], precision: float = 50.0) -> relative.Quadratic:
    return relative.Quadratic(
        torch.tensor(centers, dtype=torch.float64), torch.full((len(centers),), precision, dtype=torch.float64)
    )


def test_a_sharp_gaussian_looks_at_its_center_alone():
    heads = look(sharp((0.0, 0.0), (-2.0, 3.0), (1.0, -1.0)), GRID)
    assert heads.offset.tolist() == [[0, 0], [-2, 3], [1, -1]]
    torch.testing.assert_close(heads.mean, heads.offset.double())
    torch.testing.assert_close(heads.weight, torch.ones(3, dtype=torch.float64))
    assert heads.covariance.abs().max() < 1e-12


def test_a_wide_gaussian_has_the_attention_of_its_own_mean_and_covariance():
    # On a lattice a Gaussian of standard deviation 1 has variance 1 but for about 8π² e^(−2π²).
    heads = look(sharp((0.25, -0.5), precision=0.5), Grid((31, 29)))
    torch.testing.assert_close(heads.mean[0], torch.tensor([0.25, -0.5], dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(heads.covariance[0], torch.eye(2, dtype=torch.float64), atol=1e-6, rtol=0)


def test_center_and_precision_are_those_of_the_exponent():
    factor = torch.tensor([[[1.0, 0.3], [-0.2, 0.7]]], dtype=torch.float64)
    center = torch.tensor([[1.5, -0.5]], dtype=torch.float64)
    heads = look(relative.GeneralizedQuadratic(center, factor), GRID)
    away = torch.tensor([0.4, -1.3], dtype=torch.float64)
    log = relative.GeneralizedQuadratic(center, factor).log_at(-(center[0] + away)[None])
    assert (-away @ heads.precision[0] @ away / 2).item() == pytest.approx(log.item())
    assert heads.center.tolist() == center.tolist()
    plain = look(sharp((0.0, 1.0), precision=0.8), GRID)
    assert plain.precision[0].tolist() == [[1.6, 0.0], [0.0, 1.6]]


def test_everything_is_counted_in_tokens_whatever_the_spacing():
    wide = Grid((11, 13), spacing=(2.0, 0.5))
    heads = look(sharp((-4.0, 1.5)), wide)
    assert heads.offset.tolist() == [[-2, 3]]
    assert heads.center.tolist() == [[-2.0, 3.0]]
    assert heads.precision[0].tolist() == [[400.0, 0.0], [0.0, 25.0]]


def test_a_table_has_its_attention_and_no_center():
    torch.manual_seed(0)
    kernel = EmbeddedTable(2, 3, max_offset=12, embedding_dim=5)().on(Placement(Sites(GRID), Sites(GRID)))
    assert isinstance(kernel, relative.Table)
    heads = look(kernel, GRID)
    assert heads.center.isnan().all()
    assert heads.precision.isnan().all()
    row, column = middle_query(GRID)
    weights = torch.stack(
        [
            torch.stack([kernel.log_at(-torch.tensor([float(y - row), float(x - column)])) for x in range(13)], dim=-1)
            for y in range(11)
        ],
        dim=1,
    )
    weights = weights.double().flatten(1).softmax(dim=-1).unflatten(1, (11, 13))
    down = (weights.sum(dim=2) * torch.arange(-row, 11 - row)).sum(dim=1)
    right = (weights.sum(dim=1) * torch.arange(-column, 13 - column)).sum(dim=1)
    torch.testing.assert_close(heads.mean, torch.stack([down, right], dim=-1), atol=1e-5, rtol=1e-5)
    # Of a table rows and columns are independent.
    assert heads.covariance[:, 0, 1].abs().max() < 1e-5
    for head, (y, x) in enumerate(heads.offset.tolist()):
        assert heads.weight[head] == pytest.approx(weights[head].max().item(), rel=1e-5)
        assert weights[head, y + row, x + column] == weights[head].max()


def test_on_a_torus_offsets_are_the_shorter_way_round():
    heads = look(sharp((6.0, 0.0)), Grid((7, 5), periodic=True))
    assert heads.offset.tolist() == [[-1, 0]]


def test_layers_may_have_different_numbers_of_heads():
    model = SelfAttentionNetwork((10, 14), 1, 3, dim=4, depth=2, heads=(3, 2))
    heads = heads_of(model)
    assert heads.layer.tolist() == [0, 0, 0, 1, 1]
    second = heads.of_layer(1)
    parameters = model.attentions()[1].relative
    assert isinstance(parameters, Quadratic)
    torch.testing.assert_close(second.center, parameters.center.detach().double())
    assert second.tensors().keys() == heads.tensors().keys()
    assert math.prod(model.grid.shape) == 35


def test_joined_heads_come_apart_again():
    one, two = look(sharp((0.0, 0.0)), GRID), look(sharp((1.0, 2.0), (0.0, 1.0)), GRID)
    joined = Heads.joined({0: one, 1: two})
    assert joined.of_layer(0).offset.tolist() == [[0, 0]]
    assert joined.of_layer(1).offset.tolist() == [[1, 2], [0, 1]]


def test_what_has_no_picture_is_refused():
    with pytest.raises(ValueError, match=r"grid is .* expected a grid of two axes"):
        look(sharp((0.0, 0.0)), Grid(7))
    rings = relative.Clipped(torch.zeros(3, 4))
    with pytest.raises(ValueError, match="relative is 'clipped', expected a kernel of the offset alone"):
        look(rings, GRID)
