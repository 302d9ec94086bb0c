import dataclasses
import json
import math

import pytest
import torch

from teka.experiments.study.measure_heads import measure_heads
from teka.models import SelfAttentionNetwork
from teka.nn import Quadratic
from teka.training.heads.measure import head_grids, heads_of
from teka.training.heads.record import Moment


def moment(epoch, **options):
    torch.manual_seed(epoch)
    heads = heads_of(SelfAttentionNetwork((10, 14), 1, 3, **{"dim": 4, "depth": 2, "heads": (3, 2), **options}))
    return Moment(epoch, {}, heads, head_grids(heads))


def test_the_start_and_the_end_are_kept_layer_by_layer():
    moments = [moment(0), moment(1), moment(2)]
    chance = [dataclasses.replace(grid, window_3=2.34567) for grid in moments[0].grids]
    found = measure_heads(moments, chance)
    assert found.keys() == {"start", "end", "chance"}
    for name, kept in (("start", moments[0]), ("end", moments[2])):
        layers = found[name]
        assert isinstance(layers, list)
        assert [len(layer["center"]) for layer in layers] == [3, 2]
        for place, layer in enumerate(layers):
            heads = kept.heads.of_layer(place)
            assert layer["offset"] == heads.offset.tolist()
            torch.testing.assert_close(torch.tensor(layer["center"]).double(), heads.center, rtol=1e-3, atol=1e-6)
            assert layer["grid"]["window_3"] == kept.grids[place].window_3
    assert [layer["window_3"] for layer in found["chance"]] == [2.346, 2.346]  # pyright: ignore[reportGeneralTypeIssues]
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_a_symmetric_matrix_is_kept_as_three_numbers():
    kept = moment(3, encoding="generalized_quadratic")
    (layer, _) = measure_heads([kept], ())["end"]  # pyright: ignore[reportGeneralTypeIssues]
    precision = kept.heads.precision[0]
    assert layer["precision"][0] == pytest.approx(
        [precision[0, 0].item(), precision[1, 0].item(), precision[1, 1].item()], rel=1e-3, abs=1e-6
    )


def test_heads_of_a_table_keep_their_attention():
    kept = moment(4, encoding="table")
    (layer, _) = measure_heads([kept], ())["end"]  # pyright: ignore[reportGeneralTypeIssues]
    assert "center" not in layer
    assert layer["mean"][1] == pytest.approx(kept.heads.mean[1].tolist(), rel=1e-3)
    assert layer["covariance"][1][1] == 0.0


def test_what_is_no_number_is_none():
    model = SelfAttentionNetwork((10, 14), 1, 3, dim=4, depth=1, heads=2)
    relative = model.attentions()[0].relative
    assert isinstance(relative, Quadratic)
    with torch.no_grad():
        relative.raw_precision[0] = math.nan
    heads = heads_of(model)
    (layer,) = measure_heads([Moment(0, {}, heads, head_grids(heads))], ())["end"]  # pyright: ignore[reportGeneralTypeIssues]
    assert layer["weight"][0] is None
    assert layer["weight"][1] is not None
    assert layer["grid"]["spread"] is None
