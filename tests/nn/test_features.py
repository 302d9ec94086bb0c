"""Random and learned features as modules."""

from typing import Any

import pytest
import torch
from torch import Generator, nn

import teka
from teka import Grid
from teka.functional import (
    RELATIVES,
    Hedgehog,
    PositiveFeatures,
    TrigonometricFeatures,
    default_num_features,
)
from teka.models import Performer
from teka.nn import (
    Attention,
    LearnedFeatures,
    LearnedRelativeKernel,
    RandomFeatures,
    redraw_projections,
)
from tests.contracts.cases import RELATIVES_OF_LEARNED


@pytest.mark.parametrize(
    ("name", "kind"), [("positive", PositiveFeatures), ("trigonometric", TrigonometricFeatures)]
)
def test_forward_returns_the_kernel_with_the_projection(
    name: str, kind: type[PositiveFeatures] | type[TrigonometricFeatures]
):
    features = RandomFeatures(name, 5)
    kernel = features()
    assert isinstance(kernel, kind)
    assert kernel.projection is features.projection
    assert features.projection.shape == (default_num_features(5), 5)


def test_draws_differ_but_depend_only_on_the_seed():
    features, copy = (
        RandomFeatures("positive", 5, generator=Generator().manual_seed(3)) for _ in range(2)
    )
    drawn = []
    for _ in range(3):
        assert torch.equal(features.projection, copy.projection)
        drawn.append(features.projection.clone())
        features.redraw()
        copy.redraw()
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])
    assert int(features.num_draws) == 4


def test_global_seed_determines_different_draws_of_two_modules():
    drawn = []
    for _ in range(2):
        torch.manual_seed(0)
        drawn.append([RandomFeatures("positive", 5).projection for _ in range(2)])
    assert not torch.equal(drawn[0][0], drawn[0][1])
    assert torch.equal(drawn[0][0], drawn[1][0])
    assert torch.equal(drawn[0][1], drawn[1][1])


def test_redraw_does_not_use_the_global_generator():
    features = RandomFeatures("positive", 5)
    before = torch.get_rng_state()
    features.redraw()
    assert torch.equal(torch.get_rng_state(), before)


def test_forward_does_not_redraw():
    torch.manual_seed(0)
    layer = Attention(8, 2, kernel="positive", relative=None)
    assert isinstance(layer.kernel, RandomFeatures)
    before = layer.kernel.projection.clone()
    for _ in range(3):
        layer(torch.randn(2, 7, 8))
    assert torch.equal(layer.kernel.projection, before)


def test_every_projection_of_a_model_is_redrawn():
    model = nn.ModuleList(
        [
            Attention(8, 2, kernel="positive", relative="clipped_features"),
            Attention(8, 2, kernel="squared_relu", relative="clipped_features"),
            Attention(8, 2, kernel="trigonometric", relative="rotation_joint"),
            Attention(8, 2, kernel="softmax", relative="rotation"),
        ]
    )
    projections = {
        name: buffer for name, buffer in model.named_buffers() if name.endswith("projection")
    }
    before = {name: buffer.clone() for name, buffer in projections.items()}
    assert len(projections) == 4
    assert redraw_projections(model) == 4
    for name, projection in projections.items():
        assert not torch.equal(projection, before[name]), name


def test_position_heads_use_the_new_draw():
    relative = LearnedRelativeKernel("clipped_features", dim_head=4, num_features=7)
    nn.init.normal_(relative.distance_embedding)
    query = torch.randn(1, 1, 3, 4)
    before = relative().log_rings(query, scale=0.5)
    assert redraw_projections(relative) == 1
    assert not torch.allclose(relative().log_rings(query, scale=0.5), before)


def test_redraw_keeps_the_dtype_and_needs_no_gradient():
    features = RandomFeatures("positive", 5).double()
    features.redraw()
    assert features.projection.dtype == torch.float64
    assert list(features.parameters()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kernel": "positiv"}, "kernel must be .*got 'positiv'.*Did you mean 'positive'"),
        (
            {"kernel": "softmax"},
            "kernel must be one of 'hyperbolic', 'optimal', 'positive', .*got 'softmax'",
        ),
        (
            {"projection": "orthogonl"},
            "projection must be .*got 'orthogonl'.*Did you mean 'orthogonal'",
        ),
        ({"num_features": 0}, "num_features must be at least 1.*got 0"),
        ({"dim": 0}, "dim must be at least 1.*got 0"),
    ],
)
def test_wrong_inputs_are_errors(arguments: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        RandomFeatures(**{"kernel": "positive", "dim": 5, **arguments})


GRID = Grid((3, 5))


def test_learned_features_are_initially_the_identity():
    features = LearnedFeatures("hedgehog", 5, 3)
    kernel = features()
    assert isinstance(kernel, Hedgehog)
    for name, parameter in features.named_parameters():
        assert getattr(kernel, name) is parameter
        assert torch.equal(
            parameter, torch.eye(5).expand(3, 5, 5) if "weight" in name else torch.zeros(3, 5)
        )


@pytest.mark.parametrize("relative", [name for name in RELATIVES if name != "rotation_joint"])
def test_learned_features_exist_for_content_heads(relative: str):
    layer = Attention(15, 3, kernel="hedgehog", relative=relative)
    assert isinstance(layer.kernel, LearnedFeatures)
    assert (layer.kernel.dim, layer.kernel.heads) == (5, layer.content_heads)
    assert layer(torch.randn(2, GRID.num_tokens, 15), GRID).shape == (2, GRID.num_tokens, 15)


def test_custom_kernel_module_is_used():
    features = LearnedFeatures("hedgehog", 5, 3)
    layer = Attention(15, 3, kernel=features, relative=None)
    assert layer.kernel is features
    assert {name for name in layer.state_dict() if name.startswith("kernel.")} == {
        "kernel.query_weight",
        "kernel.key_weight",
        "kernel.query_bias",
        "kernel.key_bias",
    }


@pytest.mark.parametrize("relative", RELATIVES_OF_LEARNED)
def test_training_changes_the_features_of_every_head(relative: str | None):
    torch.manual_seed(0)
    model = Performer(
        (6, 8), 1, 3, dim=12, depth=2, heads=3, kernel="hedgehog", position=relative or "none"
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = {
        name: parameter.detach().clone()
        for name, parameter in model.named_parameters()
        if ".kernel." in name
    }
    assert len(before) == 8
    torch.nn.functional.cross_entropy(
        model(torch.randn(4, 1, 6, 8)), torch.tensor([0, 1, 2, 0])
    ).backward()
    optimizer.step()
    after = dict(model.named_parameters())
    for name, parameter in before.items():
        assert ((after[name] - parameter).flatten(1).abs().amax(dim=-1) > 0).all(), name


def test_learned_features_are_not_compared_with_softmax():
    torch.manual_seed(0)
    layer = Attention(15, 3, kernel="hedgehog", relative="rotation").eval()
    diagnosis = teka.diagnose(layer, torch.randn(2, GRID.num_tokens, 15), GRID)
    assert [group.features for group in diagnosis.groups] == [None]
    assert "hedgehog × rotation" in str(teka.explain(layer, GRID))


def test_dropout_acts_only_in_training():
    layer = Attention(15, 3, kernel="hedgehog", relative=None, dropout=0.5)
    tokens = torch.randn(2, 7, 15)
    assert not torch.equal(layer(tokens), layer(tokens))
    layer.eval()
    assert torch.equal(layer(tokens), layer(tokens))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kernel": "hedgehogs"}, "kernel must be .*got 'hedgehogs'.*Did you mean 'hedgehog'"),
        ({"kernel": "positive"}, "kernel must be one of 'hedgehog'.*got 'positive'"),
        ({"dim": 0}, "dim must be at least 1.*got 0"),
        ({"heads": 0}, "heads must be at least 1.*got 0"),
    ],
)
def test_wrong_arguments_of_learned_features_are_errors(arguments: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        LearnedFeatures(**{"kernel": "hedgehog", "dim": 5, "heads": 3, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"kernel": LearnedFeatures("hedgehog", 5, 2)},
            "kernel must be a kernel with dim=5 and heads=3.*heads=2",
        ),
        (
            {"kernel": LearnedFeatures("hedgehog", 4, 3)},
            "kernel must be a kernel with dim=5 and heads=3.*dim=4",
        ),
        ({"kernel": LearnedFeatures("hedgehog", 5, 3), "relative": "clipped"}, "dim=5 and heads=2"),
        (
            {"kernel": "hedgehog", "num_features": 7},
            "num_features must be None with kernel='hedgehog'.*got 7",
        ),
    ],
)
def test_learned_features_of_another_size_are_an_error_for_a_layer(
    arguments: dict[str, Any], message: str
):
    arguments = {"relative": None, **arguments}
    with pytest.raises(ValueError, match=message):
        Attention(15, 3, **arguments)


def test_joint_form_is_an_error_for_learned_features():
    layer = Attention(15, 3, kernel="hedgehog", relative="rotation_joint")
    with pytest.raises(ValueError, match=r"kernel must be .*got 'hedgehog'"):
        layer(torch.randn(2, GRID.num_tokens, 15), GRID)
