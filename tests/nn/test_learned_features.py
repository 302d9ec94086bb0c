from typing import Any

import pytest
import torch
from tests.contracts.cases import RELATIVES_OF_LEARNED

import teka
from teka import Grid
from teka.functional import Hedgehog
from teka.functional.relative import RELATIVES
from teka.models import Performer
from teka.nn import Attention, LearnedFeatures

GRID = Grid((3, 5))


def test_it_gives_the_kernel_with_its_parameters_and_begins_as_the_identity():
    features = LearnedFeatures("hedgehog", 5, 3)
    kernel = features()
    assert isinstance(kernel, Hedgehog)
    for name, parameter in features.named_parameters():
        assert getattr(kernel, name) is parameter
        assert torch.equal(parameter, torch.eye(5).expand(3, 5, 5) if "weight" in name else torch.zeros(3, 5))


@pytest.mark.parametrize("relative", [name for name in RELATIVES if name != "rotation_joint"])
def test_a_layer_has_a_map_for_each_head_that_attends_by_content(relative: str):
    layer = Attention(15, 3, kernel="hedgehog", relative=relative)
    assert isinstance(layer.kernel, LearnedFeatures)
    assert (layer.kernel.dim, layer.kernel.heads) == (5, layer.content_heads)
    assert layer(torch.randn(2, GRID.num_tokens, 15), GRID).shape == (2, GRID.num_tokens, 15)


def test_a_module_of_ones_own_is_taken_as_it_is():
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
def test_a_step_of_training_moves_the_map_of_every_head(relative: str | None):
    torch.manual_seed(0)
    model = Performer((6, 8), 1, 3, dim=12, depth=2, heads=3, kernel="hedgehog", position=relative or "none")
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = {name: one.detach().clone() for name, one in model.named_parameters() if ".kernel." in name}
    assert len(before) == 8
    torch.nn.functional.cross_entropy(model(torch.randn(4, 1, 6, 8)), torch.tensor([0, 1, 2, 0])).backward()
    optimizer.step()
    after = dict(model.named_parameters())
    for name, one in before.items():
        assert ((after[name] - one).flatten(1).abs().amax(dim=-1) > 0).all(), name


def test_it_estimates_nothing_and_so_is_not_compared_with_softmax():
    torch.manual_seed(0)
    layer = Attention(15, 3, kernel="hedgehog", relative="rotation").eval()
    diagnosis = teka.diagnose(layer, torch.randn(2, GRID.num_tokens, 15), GRID)
    assert [group.estimator for group in diagnosis.groups] == [None]
    assert "hedgehog × rotation" in str(teka.explain(layer, GRID))


def test_dropout_acts_in_training_only():
    layer = Attention(15, 3, kernel="hedgehog", relative=None, dropout=0.5)
    tokens = torch.randn(2, 7, 15)
    assert not torch.equal(layer(tokens), layer(tokens))
    layer.eval()
    assert torch.equal(layer(tokens), layer(tokens))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kernel": "hedgehogs"}, "kernel is 'hedgehogs', expected .*; did you mean 'hedgehog'"),
        ({"kernel": "positive"}, "kernel is 'positive', expected one of 'hedgehog'"),
        ({"dim": 0}, "dim is 0, expected at least 1"),
        ({"heads": 0}, "heads is 0, expected at least 1"),
    ],
)
def test_bad_input_is_an_error_that_names_it(arguments: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        LearnedFeatures(**{"kernel": "hedgehog", "dim": 5, "heads": 3, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kernel": LearnedFeatures("hedgehog", 5, 2)}, "heads=2.*expected dim=5 and heads=3"),
        ({"kernel": LearnedFeatures("hedgehog", 4, 3)}, "dim=4.*expected dim=5 and heads=3"),
        ({"kernel": LearnedFeatures("hedgehog", 5, 3), "relative": "clipped"}, "expected dim=5 and heads=2"),
        ({"kernel": "hedgehog", "num_features": 7}, "num_features is 7, expected None with kernel='hedgehog'"),
    ],
)
def test_a_layer_refuses_what_does_not_fit_it(arguments: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        Attention(15, 3, **{"relative": None, **arguments})


def test_the_joint_form_is_refused_for_it_estimates_no_exponential():
    layer = Attention(15, 3, kernel="hedgehog", relative="rotation_joint")
    with pytest.raises(ValueError, match="kernel is 'hedgehog'"):
        layer(torch.randn(2, GRID.num_tokens, 15), GRID)
