import math
from typing import Any

import pytest
import torch
from tests.contracts.cases import relative_change
from tests.nn.test_attention import build, draw_tokens

from teka import Grid
from teka.functional import SquaredRelu
from teka.nn import Clipped, RandomFeatures, Rotation, TransformerBlock

GRID = Grid((3, 5))


def test_dropout_acts_in_training_only():
    layer, tokens = build(dropout=0.5), draw_tokens()
    torch.manual_seed(0)
    assert not torch.equal(layer(tokens), layer(tokens))
    assert 0.3 < float((layer(tokens) == 0).float().mean()) < 0.7
    plain = build().eval()
    plain.load_state_dict(layer.state_dict())
    assert torch.equal(layer.eval()(tokens), plain(tokens))


def test_every_option_does_what_it_says():
    assert build(dim_head=5).get_parameter("value.weight").shape == (10, 8)
    assert build(dim=10, heads=4, dim_head=3).output.in_features == 12
    without = build(qkv_bias=False)
    assert without.query is not None
    assert without.query.bias is None
    assert "value.bias" not in without.state_dict()
    softmax = build(kernel="softmax")
    assert softmax.key is not None
    assert softmax.key.bias is None  # it would cancel
    assert build(kernel="constant").query is None
    assert build(kernel="constant").key is None
    features = build(kernel="positive", num_features=7).kernel
    assert isinstance(features, RandomFeatures)
    assert features.projection.shape == (7, 4)
    joint = build(kernel="positive", relative="rotation_joint", num_features=7).kernel
    assert isinstance(joint, RandomFeatures)
    assert joint.projection.shape == (7, 4 + 2 * 2 * 4)


@pytest.mark.parametrize(
    ("backend", "relative"), [("toeplitz", "rotation"), ("rings", "clipped"), ("linear", None)]
)
def test_a_backend_asked_for_computes_what_the_dense_one_does(backend: str, relative: str | None):
    layer = build(relative=relative, backend=backend).double()
    assert layer.backend == backend
    fast = layer(draw_tokens().double(), GRID, None, 1)
    layer.backend = "dense"
    assert relative_change(layer(draw_tokens().double(), GRID, None, 1), fast) < 1e-12


def test_instances_are_taken_for_names():
    kernel, relative = SquaredRelu(0.1), Rotation(2, 2, 4)
    layer = build(kernel=kernel, relative=relative)
    assert layer.kernel is kernel
    assert layer.relative is relative
    features = RandomFeatures("positive", 4)
    assert build(kernel=features).kernel is features
    assert build(relative=Clipped(4, max_distance=2)).content_heads == 1


BAD: list[tuple[dict[str, Any], str]] = [
    ({"dim": 0}, "dim is 0, expected at least 1"),
    ({"heads": 0}, "heads is 0, expected at least 1"),
    ({"heads": 3}, "heads is 3, expected a divisor of dim = 8"),
    ({"dim_head": 0}, "dim_head is 0, expected at least 1"),
    ({"dim_head": -1}, "dim_head is -1, expected at least 1"),
    ({"dim": 8.0}, r"dim is 8.0, expected a whole number"),
    ({"heads": True}, "heads is True, expected a whole number"),
    ({"causal": "no"}, "causal is 'no', expected True or False"),
    ({"dropout": math.nan}, "dropout is nan, expected a probability"),
    ({"position_heads": "1"}, "position_heads is '1', expected a whole number"),
    (
        {"kernel": "dot_product", "relative": "rotary"},
        "relative is 'rotary', expected one that does not rotate, or None",
    ),
    (
        {"rotary_normalizer": "length", "relative": "rotary"},
        "rotary_normalizer is 'length', .*did you mean 'lengths'",
    ),
    ({"dropout": 1.0}, "dropout is 1.0, expected a probability"),
    ({"dropout": -0.1}, "dropout is -0.1, expected a probability"),
    ({"backend": "linaer"}, "backend is 'linaer', expected .*; did you mean 'linear'"),
    (
        {"kernel": "squard_relu"},
        "kernel is 'squard_relu', expected .*; did you mean 'squared_relu'",
    ),
    ({"kernel": 3}, "kernel is 3"),
    ({"relative": "rotatoin"}, "relative is 'rotatoin', expected .*; did you mean 'rotation'"),
    ({"relative": 3}, "relative is 3, expected None, a name or a module"),
    (
        {"relative": "clipped", "heads": 1},
        "heads is 1, expected at least 2 with relative='clipped'",
    ),
    ({"relative": "rotation", "num_axes": 0}, "num_axes is 0, expected at least 1"),
    ({"num_features": 7}, "num_features is 7, expected None with kernel='squared_relu'"),
    ({"num_features": 7, "kernel": SquaredRelu()}, "num_features is 7, expected None with kernel="),
    (
        {"num_features": 7, "kernel": RandomFeatures("positive", 4)},
        "num_features is 7, expected None with kernel=",
    ),
    (
        {"num_features": 7, "kernel": "softmax", "relative": "clipped"},
        "num_features is 7, expected None",
    ),
    ({"num_features": 0, "kernel": "positive"}, "num_features is 0, expected at least 1"),
]


def test_a_bad_option_is_an_error_that_names_it(as_users_run_it: None):
    for options, message in BAD:
        with pytest.raises(ValueError, match=message):
            build(**options)


def test_bad_input_is_an_error_that_names_it(as_users_run_it: None):
    for size, arguments, message in (
        ((2, 15), (GRID,), r"tokens has shape \(2, 15\), expected \(batch, tokens, 8\)"),
        ((2, 15, 9), (GRID,), r"tokens has shape \(2, 15, 9\), expected \(batch, tokens, 8\)"),
        ((2, 14, 8), (GRID,), "the sequence has 14 tokens, expected 0 prefix"),
        ((2, 15, 8), (None,), "grid and positions is 'neither'"),
        ((2, 15, 8), (GRID, torch.ones(2, 14, dtype=torch.bool)), r"key_mask has shape \(2, 14\)"),
        (
            (2, 15, 8),
            (Grid((15,)),),
            "number of axes of grid or positions is 1, expected 2, .* made with num_axes=1",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            build(relative="rotation")(torch.zeros(size), *arguments)


TOKENS = torch.zeros(2, 15, 8)
UNFIT: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"tokens": TOKENS.long()}, "tokens is torch.int64, expected a floating dtype"),
    (
        {},
        {"tokens": TOKENS.double()},
        r"tokens is torch.float64, expected torch.float32, as the layer's weights are",
    ),
    ({}, {"tokens": TOKENS.tolist()}, "tokens is of type list, expected a tensor"),
    ({}, {"tokens": TOKENS.numpy()}, "tokens is of type ndarray, expected a tensor"),
    (
        {},
        {"context": TOKENS.double(), "context_grid": GRID},
        r"context is torch.float64, expected torch.float32",
    ),
    ({}, {"context": TOKENS, "context_grid": 15}, "context_grid is 15, expected a teka.Grid"),
    (
        {},
        {"lengths": torch.ones(3, dtype=torch.long)},
        r"lengths has shape \(3,\), expected \(2,\)",
    ),
    ({"relative": None}, {"grid": Grid((3, 4))}, "the sequence has 15 tokens, expected 0 prefix"),
    ({"relative": None}, {"grid": (3, 5)}, r"grid is \(3, 5\), expected a teka.Grid"),
    ({"relative": None}, {"num_prefix_tokens": -1}, "num_prefix_tokens is -1, expected at least 0"),
    (
        {"relative": "rotation_joint", "kernel": "positive"},
        {"grid": None},
        "grid and positions is 'neither'",
    ),
]


def test_what_a_layer_cannot_take_is_an_error_that_names_it(as_users_run_it: None):
    for options, changed, message in UNFIT:
        with pytest.raises(ValueError, match=message):
            build(**options)(**{"tokens": TOKENS, "grid": GRID, **changed})
        if "tokens" in changed:
            with pytest.raises(ValueError, match=message):
                TransformerBlock(8, 2)(changed["tokens"], GRID)


def test_in_mixed_precision_tokens_may_have_another_dtype_than_weights():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert build()(TOKENS.bfloat16(), GRID).dtype == torch.bfloat16
        with pytest.raises(ValueError, match=r"tokens is torch.float64, expected torch.float32"):
            build()(TOKENS.double(), GRID)


def test_a_step_takes_the_states_of_the_last_and_no_others(as_users_run_it: None):
    layer = build(causal=True, num_axes=1)
    _, right = layer.step(TOKENS[:, 0])
    others: list[Any] = [(), right * 2, [None], 3]
    for given in others:
        with pytest.raises(
            ValueError, match=r"state is .*, expected None, or the tuple of 1 that the last step"
        ):
            layer.step(TOKENS[:, 0], given)
    layer.step(TOKENS[:, 0], right)


def test_a_number_of_queries_that_cannot_be_is_refused():
    alone = "None with a relative kernel, a context or causality"
    cases = (
        ("rotation", 3, alone), ("clipped", 15, alone), (None, 0, "at least 1"), (None, 16, "a whole number up to 15"),
    )  # fmt: skip
    for relative, num_queries, expected in cases:
        with pytest.raises(ValueError, match=f"num_queries is {num_queries}, expected {expected}"):
            build(relative=relative)(draw_tokens(15), GRID, None, 0, num_queries)
