from typing import Any

import pytest
import torch
from torch import Generator, nn

from teka.functional import Positive, Trigonometric, default_num_features
from teka.nn import Attention, ClippedFeatures, RandomFeatures, redraw_projections


@pytest.mark.parametrize(("name", "kind"), [("positive", Positive), ("trigonometric", Trigonometric)])
def test_it_gives_the_kernel_with_its_projection(name: str, kind: type[Positive] | type[Trigonometric]):
    features = RandomFeatures(name, 5)
    kernel = features()
    assert isinstance(kernel, kind)
    assert kernel.projection is features.projection
    assert features.projection.shape == (default_num_features(5), 5)


def test_the_same_seed_draws_the_same_and_every_draw_differs():
    one, other = (RandomFeatures("positive", 5, generator=Generator().manual_seed(3)) for _ in range(2))
    drawn = []
    for _ in range(3):
        assert torch.equal(one.projection, other.projection)
        drawn.append(one.projection.clone())
        one.redraw()
        other.redraw()
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])
    assert int(one.num_draws) == 4


def test_two_modules_draw_differently_and_torchs_seed_decides_how():
    drawn = []
    for _ in range(2):
        torch.manual_seed(0)
        drawn.append([RandomFeatures("positive", 5).projection for _ in range(2)])
    assert not torch.equal(drawn[0][0], drawn[0][1])
    assert torch.equal(drawn[0][0], drawn[1][0])
    assert torch.equal(drawn[0][1], drawn[1][1])


def test_redrawing_leaves_torchs_global_generator_alone():
    features = RandomFeatures("positive", 5)
    before = torch.get_rng_state()
    features.redraw()
    assert torch.equal(torch.get_rng_state(), before)


def test_nothing_is_redrawn_in_forward():
    torch.manual_seed(0)
    layer = Attention(8, 2, kernel="positive", relative=None)
    assert isinstance(layer.kernel, RandomFeatures)
    before = layer.kernel.projection.clone()
    for _ in range(3):
        layer(torch.randn(2, 7, 8))
    assert torch.equal(layer.kernel.projection, before)


def test_every_projection_of_a_model_is_redrawn_those_of_position_heads_too():
    model = nn.ModuleList(
        [
            Attention(8, 2, kernel="positive", relative="clipped_features"),
            Attention(8, 2, kernel="squared_relu", relative="clipped_features"),
            Attention(8, 2, kernel="trigonometric", relative="rotation_joint"),
            Attention(8, 2, kernel="softmax", relative="rotation"),
        ]
    )
    projections = {name: buffer for name, buffer in model.named_buffers() if name.endswith("projection")}
    before = {name: buffer.clone() for name, buffer in projections.items()}
    assert len(projections) == 4
    assert redraw_projections(model) == 4
    for name, projection in projections.items():
        assert not torch.equal(projection, before[name]), name


def test_the_position_heads_compute_with_the_new_draw():
    relative = ClippedFeatures(4, num_features=7)
    nn.init.normal_(relative.distance_embedding)
    query = torch.randn(1, 1, 3, 4)
    before = relative().log_rings(query, scale=0.5)
    assert redraw_projections(relative) == 1
    assert not torch.allclose(relative().log_rings(query, scale=0.5), before)


def test_a_redraw_keeps_dtype_and_projections_learn_nothing():
    features = RandomFeatures("positive", 5).double()
    features.redraw()
    assert features.projection.dtype == torch.float64
    assert list(features.parameters()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kernel": "positiv"}, "kernel is 'positiv', expected .*; did you mean 'positive'"),
        (
            {"kernel": "softmax"},
            "kernel is 'softmax', expected one of 'hyperbolic', 'optimal', 'positive', 'trigonometric'",
        ),
        ({"projection": "orthogonl"}, "projection is 'orthogonl', expected .*; did you mean 'orthogonal'"),
        ({"num_features": 0}, "num_features is 0, expected at least 1"),
        ({"dim": 0}, "dim is 0, expected at least 1"),
    ],
)
def test_bad_input_is_an_error_that_names_it(arguments: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        RandomFeatures(**{"kernel": "positive", "dim": 5, **arguments})
