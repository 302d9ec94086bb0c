import math
from typing import Any

import pytest
import torch

from teka import Grid
from teka.functional import SquaredRelu
from teka.nn import (
    Attention,
    AttentionHeads,
    LearnedRelativeKernel,
    RandomFeatures,
    TransformerBlock,
)
from tests.contracts.cases import relative_error
from tests.nn.test_attention import build, draw_tokens

GRID = Grid((3, 5))


def test_dropout_acts_only_in_training():
    layer, tokens = build(dropout=0.5), draw_tokens()
    torch.manual_seed(0)
    assert not torch.equal(layer(tokens), layer(tokens))
    assert 0.3 < float((layer(tokens) == 0).float().mean()) < 0.7
    plain = build().eval()
    plain.load_state_dict(layer.state_dict())
    assert torch.equal(layer.eval()(tokens), plain(tokens))


def test_every_option_has_its_effect():
    assert build(dim_head=5).get_parameter("value.weight").shape == (10, 8)
    assert build(dim=10, heads=4, dim_head=3).output.in_features == 12
    without = build(qkv_bias=False)
    assert without.query is not None
    assert without.query.bias is None
    assert "value.bias" not in without.state_dict()
    softmax = build(kernel="softmax")
    assert softmax.key is not None
    assert softmax.key.bias is None  # a bias would cancel
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
def test_every_backend_equals_dense(backend: str, relative: str | None):
    layer = build(relative=relative, backend=backend).double()
    assert layer.backend == backend
    fast = layer(draw_tokens().double(), GRID, None, 1)
    layer.backend = "dense"
    assert relative_error(layer(draw_tokens().double(), GRID, None, 1), fast) < 1e-12


def test_kernel_instances_are_accepted():
    kernel, relative = (
        SquaredRelu(0.1),
        LearnedRelativeKernel("rotation", num_axes=2, heads=2, dim_head=4),
    )
    layer = build(kernel=kernel, relative=relative)
    assert layer.kernel is kernel
    assert layer.relative is relative
    features = RandomFeatures("positive", 4)
    assert build(kernel=features).kernel is features
    assert (
        build(relative=LearnedRelativeKernel("clipped", dim_head=4, max_distance=2)).content_heads
        == 1
    )


BAD: list[tuple[dict[str, Any], str]] = [
    ({"dim": 0}, "dim must be at least 1.*got 0"),
    ({"heads": 0}, "heads must be at least 1.*got 0"),
    ({"heads": 3}, "heads must be a divisor of dim = 8.*got 3"),
    ({"dim_head": 0}, "dim_head must be at least 1.*got 0"),
    ({"dim_head": -1}, "dim_head must be at least 1.*got -1"),
    ({"dim": 8.0}, r"dim must be a whole number.*got 8.0"),
    ({"heads": True}, "heads must be a whole number.*got True"),
    ({"causal": "no"}, "causal must be True or False.*got 'no'"),
    ({"dropout": math.nan}, "dropout must be a probability.*got nan"),
    ({"position_heads": "1"}, "position_heads must be a whole number.*got '1'"),
    (
        {"kernel": "dot_product", "relative": "rotary"},
        "relative must be a kernel that does not rotate, got 'rotary'",
    ),
    (
        {"rotary_normalizer": "length", "relative": "rotary"},
        r"rotary_normalizer must be .*got 'length'.*Did you mean 'lengths'",
    ),
    ({"dropout": 1.0}, "dropout must be a probability.*got 1.0"),
    ({"dropout": -0.1}, "dropout must be a probability.*got -0.1"),
    ({"backend": "linaer"}, "backend must be .*got 'linaer'.*Did you mean 'linear'"),
    ({"kernel": "squard_relu"}, "kernel must be .*got 'squard_relu'.*Did you mean 'squared_relu'"),
    ({"kernel": 3}, r"kernel must be .*got 3"),
    ({"relative": "rotatoin"}, "relative must be .*got 'rotatoin'.*Did you mean 'rotation'"),
    ({"relative": 3}, "relative must be None, a name or a teka.nn.LearnedRelativeKernel.*got 3"),
    (
        {"relative": "clipped", "heads": 1},
        "heads must be at least 2 with relative='clipped'.*got 1",
    ),
    ({"relative": "rotation", "num_axes": 0}, "num_axes must be at least 1.*got 0"),
    ({"num_features": 7}, "num_features must be None with kernel='squared_relu'.*got 7"),
    ({"num_features": 7, "kernel": SquaredRelu()}, "num_features must be None with kernel=.*got 7"),
    (
        {"num_features": 7, "kernel": RandomFeatures("positive", 4)},
        "num_features must be None with kernel=.*got 7",
    ),
    (
        {"num_features": 7, "kernel": "softmax", "relative": "clipped"},
        "num_features must be None.*got 7",
    ),
    ({"num_features": 0, "kernel": "positive"}, "num_features must be at least 1.*got 0"),
]


def test_wrong_options_are_errors(unchecked_annotations: None):
    for options, message in BAD:
        with pytest.raises(ValueError, match=message):
            build(**options)


def test_wrong_inputs_are_errors(unchecked_annotations: None):
    for size, arguments, message in (
        ((2, 15), (GRID,), r"tokens must have shape \(batch, tokens, 8\).*got \(2, 15\)"),
        ((2, 15, 9), (GRID,), r"tokens must have shape \(batch, tokens, 8\).*got \(2, 15, 9\)"),
        ((2, 14, 8), (GRID,), "the sequence must have 0 prefix.*got 14 tokens"),
        ((2, 15, 8), (None,), "grid or positions must be given, .*got neither"),
        (
            (2, 15, 8),
            (GRID, torch.ones(2, 14, dtype=torch.bool)),
            r"key_mask must have shape \(2, 15\), got \(2, 14\)",
        ),
        (
            (2, 15, 8),
            (Grid((15,)),),
            "number of axes of grid or positions must be 2, .*got 1. Make the layer with num_axes",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            build(relative="rotation", num_axes=2)(torch.zeros(size), *arguments)


TOKENS = torch.zeros(2, 15, 8)
UNFIT: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"tokens": TOKENS.long()}, "tokens must be of a floating-point dtype.*got torch.int64"),
    (
        {},
        {"tokens": TOKENS.double()},
        r"tokens must be of torch.float32, like the layer's weights, got torch.float64",
    ),
    ({}, {"tokens": TOKENS.tolist()}, "tokens must be a tensor.*got an object of type list"),
    ({}, {"tokens": TOKENS.numpy()}, "tokens must be a tensor.*got an object of type ndarray"),
    (
        {},
        {"context": TOKENS.double(), "context_grid": GRID},
        r"context must be of torch.float32.*got torch.float64",
    ),
    ({}, {"context": TOKENS, "context_grid": 1.5}, "context_grid must be a teka.Grid.*got 1.5"),
    (
        {},
        {"lengths": torch.ones(3, dtype=torch.long)},
        r"lengths must have shape \(2,\).*got \(3,\)",
    ),
    ({"relative": None}, {"grid": Grid((3, 4))}, "the sequence must have 0 prefix.*got 15 tokens"),
    ({"relative": None}, {"grid": "wide"}, "grid must be a teka.Grid.*got 'wide'"),
    ({"relative": None}, {"num_prefix_tokens": -1}, "num_prefix_tokens must be at least 0.*got -1"),
    (
        {"relative": "rotation_joint", "kernel": "positive"},
        {"grid": None},
        r"grid or positions must be given.*got neither",
    ),
]


def test_unsupported_inputs_are_errors(unchecked_annotations: None):
    for options, changed, message in UNFIT:
        with pytest.raises(ValueError, match=message):
            build(**options)(**{"tokens": TOKENS, "grid": GRID, **changed})
        if "tokens" in changed:
            with pytest.raises(ValueError, match=message):
                TransformerBlock(8, 2)(changed["tokens"], GRID)


def test_autocast_accepts_tokens_of_another_dtype():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert build()(TOKENS.bfloat16(), GRID).dtype == torch.bfloat16
        with pytest.raises(ValueError, match=r"tokens must be of torch.float32.*got torch.float64"):
            build()(TOKENS.double(), GRID)


def test_step_with_a_state_of_another_layer_is_an_error(unchecked_annotations: None):
    layer = build(causal=True, num_axes=1)
    _, right = layer.step(TOKENS[:, 0])
    others: list[Any] = [(), right * 2, [None], 3]
    for other_state in others:
        with pytest.raises(
            ValueError, match=r"state must be None, or the tuple of 1 states that the last step"
        ):
            layer.step(TOKENS[:, 0], other_state)
    layer.step(TOKENS[:, 0], right)


def test_wrong_num_queries_is_an_error():
    alone = "None"
    cases = (
        ("rotation", 3, alone),
        ("clipped", 15, alone),
        (None, 0, "at least 1"),
        (None, 16, "a whole number up to 15"),
    )
    for relative, num_queries, expected in cases:
        with pytest.raises(ValueError, match=rf"num_queries must be {expected}.*got {num_queries}"):
            build(relative=relative)(draw_tokens(15), GRID, None, 0, num_queries)


@pytest.mark.parametrize(("shape", "num_axes"), [((3, 4), 2), (12, 1)])
def test_layers_accept_a_shape_or_a_length_as_a_grid(shape: Any, num_axes: int):
    grid = Grid(shape)
    tokens = torch.randn(2, 12, 8)
    layer = Attention(8, 2, num_axes=num_axes, value_convolution=3)
    assert torch.equal(layer(tokens, shape), layer(tokens, grid))
    block = TransformerBlock(8, 2, num_axes=num_axes).eval()
    assert torch.equal(block(tokens, shape), block(tokens, grid))
    heads = AttentionHeads(4, 2, grid=shape)
    assert heads.grid == grid
