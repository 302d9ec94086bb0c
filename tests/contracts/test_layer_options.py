"""The contracts of layers with each of the options that are off by default."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from teka import Grid, diagnose
from teka.models import Performer
from teka.nn import Attention, TransformerBlock
from tests.contracts.cases import for_each, relative_error, roll_tokens

TOLERANCE = 1e-10
CLEARLY = 1e-3
TORUS = Grid((5, 7), periodic=True)
DIM, HEADS = 12, 3

PLACED: dict[str, dict[str, Any]] = {
    "one of three heads by position, waves": {"relative": "fourier", "position_heads": 1},
    "two waves": {"relative": "fourier", "num_waves": 2},
    "two of three heads by position, table": {"relative": "table", "position_heads": 2},
    "one of three heads by position, rotation": {"relative": "rotation", "position_heads": 1},
    "two of three heads by position, quadratic": {"relative": "quadratic", "position_heads": 2},
    "clipped in every head": {"relative": "clipped", "position_heads": 0},
    "clipped in two of three heads": {"relative": "clipped", "position_heads": 2},
    "normalized beside clipped": {"relative": "clipped", "query_key": "normalized"},
    "centred and gated, waves": {"relative": "fourier", "query_key": "centred", "gate": True},
    "normalized and rotated": {"relative": "rotary", "query_key": "normalized"},
    "centred and rotated softmax": {
        "relative": "rotary",
        "query_key": "centred",
        "kernel": "softmax",
    },
    "convolution": {"value_convolution": 3},
    "means of whole tokens": {"values": "tokens", "relative": "quadratic", "kernel": "constant"},
    "means of whole tokens, clipped, gated and with a convolution": {
        "values": "tokens",
        "relative": "clipped",
        "dim_head": 5,
        "gate": True,
        "value_convolution": 3,
    },
    "convolution, gate and clipped": {"value_convolution": 5, "gate": True, "relative": "clipped"},
    "all together": {
        "relative": "fourier",
        "position_heads": 1,
        "num_waves": 3,
        "query_key": "normalized",
        "gate": True,
        "value_convolution": 3,
    },
}
UNPLACED: dict[str, dict[str, Any]] = {
    "normalized": {"query_key": "normalized"},
    "normalized softmax": {"query_key": "normalized", "kernel": "softmax"},
    "centred": {"query_key": "centred"},
    "centred random features": {"query_key": "centred", "kernel": "positive"},
    "gated": {"gate": True},
    "gated mean": {"gate": True, "kernel": "constant"},
    "gated, centred and focused": {"gate": True, "query_key": "centred", "kernel": "focused"},
}
CAUSAL: dict[str, dict[str, Any]] = {
    "one of three heads by position, waves": {"relative": "fourier", "position_heads": 1},
    "clipped in every head": {"relative": "clipped", "position_heads": 0},
    "clipped in two of three heads": {"relative": "clipped", "position_heads": 2},
    "normalized": {"query_key": "normalized"},
    "gated, two waves": {"gate": True, "relative": "fourier", "num_waves": 2},
    "gated, normalized, clipped": {"gate": True, "query_key": "normalized", "relative": "clipped"},
}
ALL = PLACED | UNPLACED


def build(**options: Any) -> Attention:
    """Return a layer in float64 in which every parameter has an effect."""
    torch.manual_seed(0)
    options = {"relative": None, **options}
    layer = Attention(DIM, HEADS, **options).double().eval()
    for name, parameter in layer.named_parameters():
        if name.endswith(("gain", "distance_embedding", "tables")) or name.startswith(
            ("gate", "value_convolution")
        ):
            nn.init.normal_(parameter)
    return layer


def draw_tokens(num_tokens: int, *, batch: int = 2, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, num_tokens, DIM, generator=generator, dtype=torch.float64)


@for_each(ALL)
def test_rolling_tokens_rolls_the_output(options: dict[str, Any]):
    layer, tokens = build(**options), draw_tokens(TORUS.num_tokens)
    expected = roll_tokens(TORUS, layer(tokens, TORUS), (2, 3))
    assert relative_error(layer(roll_tokens(TORUS, tokens, (2, 3)), TORUS), expected) < TOLERANCE


@for_each(PLACED)
def test_rolling_tokens_does_not_change_a_class_token(options: dict[str, Any]):
    layer, tokens, prefix = build(**options), draw_tokens(TORUS.num_tokens), draw_tokens(1, seed=2)
    rolled = roll_tokens(TORUS, tokens, (2, 3))
    before, after = (
        layer(torch.cat([prefix, part], dim=1), TORUS, None, 1) for part in (tokens, rolled)
    )
    assert relative_error(after[:, 0], before[:, 0]) < TOLERANCE
    assert relative_error(after[:, 1:], roll_tokens(TORUS, before[:, 1:], (2, 3))) < TOLERANCE


@for_each(PLACED)
def test_moving_kept_tokens_moves_the_output(options: dict[str, Any]):
    layer, patch = build(**options), draw_tokens(12).unflatten(1, (3, 4))
    outputs = []
    for row, column in ((2, 2), (4, 3)):
        canvas = torch.zeros(2, 9, 10, DIM, dtype=torch.float64)
        kept = torch.zeros(2, 9, 10, dtype=torch.bool)
        (
            canvas[:, row : row + 3, column : column + 4],
            kept[:, row : row + 3, column : column + 4],
        ) = patch, True
        output = layer(canvas.flatten(1, 2), Grid((9, 10)), kept.flatten(1)).unflatten(1, (9, 10))
        outputs.append(output[:, row : row + 3, column : column + 4])
    assert relative_error(*outputs) < TOLERANCE


@for_each(PLACED)
def test_token_order_matters_with_positions(options: dict[str, Any]):
    layer, tokens = build(**options), draw_tokens(TORUS.num_tokens)
    order = torch.randperm(TORUS.num_tokens, generator=torch.Generator().manual_seed(3))
    assert relative_error(layer(tokens[:, order], TORUS), layer(tokens, TORUS)[:, order]) > CLEARLY


@for_each(UNPLACED)
def test_permuting_tokens_without_positions_permutes_the_output(options: dict[str, Any]):
    layer, tokens = build(**options), draw_tokens(11)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(3))
    assert relative_error(layer(tokens[:, order]), layer(tokens)[:, order]) < TOLERANCE


@for_each(ALL)
def test_every_parameter_has_a_gradient(options: dict[str, Any]):
    layer = build(**options).train()
    # The frequencies of periodic axes are rounded and have no gradient.
    layer(draw_tokens(TORUS.num_tokens), Grid(TORUS.shape)).sin().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > TOLERANCE, name


@for_each(ALL)
def test_masked_tokens_change_nothing(options: dict[str, Any]):
    layer, tokens = build(**options), draw_tokens(TORUS.num_tokens + 1)
    keep = torch.arange(2 * 36).reshape(2, 36) % 5 > 0
    keep[:, 0] = True
    other = torch.where(keep[..., None], tokens, 30 * draw_tokens(36, seed=2))
    before, after = (layer(inputs, TORUS, keep, 1) for inputs in (tokens, other))
    assert relative_error(after[keep], before[keep]) < TOLERANCE


@for_each(UNPLACED)
def test_padded_sample_equals_the_sample_alone(options: dict[str, Any]):
    layer, tokens = build(**options), draw_tokens(11)
    together = layer(tokens, lengths=torch.tensor([11, 6]))
    assert relative_error(together[1:, :6], layer(tokens[1:, :6])) < TOLERANCE
    assert (together[1, 6:] == 0).all()


@for_each(UNPLACED)
def test_num_queries_returns_the_first_outputs(options: dict[str, Any]):
    layer, tokens = build(**options), draw_tokens(11)
    assert relative_error(layer(tokens, num_queries=3), layer(tokens)[:, :3]) < TOLERANCE


@for_each(UNPLACED)
def test_tokens_as_context_equal_self_attention(options: dict[str, Any]):
    layer, tokens = build(**options), draw_tokens(11)
    keep = torch.arange(22).reshape(2, 11) % 4 > 0
    assert (
        relative_error(layer(tokens, None, keep, context=tokens), layer(tokens, None, keep))
        < TOLERANCE
    )


@for_each(ALL)
def test_state_dict_restores_the_layer(options: dict[str, Any]):
    layer = build(**options)
    torch.manual_seed(7)
    options = {"relative": None, **options}
    other = Attention(DIM, HEADS, **options).double().eval()
    other.load_state_dict(layer.state_dict())
    tokens = draw_tokens(TORUS.num_tokens)
    assert torch.equal(other(tokens, TORUS), layer(tokens, TORUS))


@for_each(CAUSAL)
def test_causal_layers_decode_step_by_step(options: dict[str, Any]):
    layer, tokens = build(causal=True, num_axes=1, **options), draw_tokens(9)
    expected = layer(tokens, Grid(9))
    other = torch.cat([tokens[:, :5], 30 * draw_tokens(4, seed=2)], dim=1)
    assert relative_error(layer(other, Grid(9))[:, :5], expected[:, :5]) < TOLERANCE
    state, steps = None, []
    for token in tokens.unbind(1):
        output, state = layer.step(token, state)
        steps.append(output)
    assert relative_error(torch.stack(steps, dim=1), expected) < TOLERANCE


@for_each(ALL)
def test_every_option_can_be_diagnosed(options: dict[str, Any]):
    layer, tokens = build(**options), draw_tokens(TORUS.num_tokens)
    diagnosis = diagnose(layer, tokens, TORUS)
    assert sum(len(group.heads) for group in diagnosis.groups) == HEADS
    for group in diagnosis.groups:
        assert all(difference < TOLERANCE for difference in group.rounding.values())


OFF = {
    "position_heads": None,
    "num_waves": None,
    "query_key": "plain",
    "gate": False,
    "value_convolution": None,
}


@pytest.mark.parametrize("relative", [None, "rotation", "clipped", "fourier", "rotary"])
def test_options_are_off_by_default(relative: str | None):
    layers = []
    for options in ({}, OFF):
        torch.manual_seed(0)
        layers.append(TransformerBlock(DIM, HEADS, relative=relative, **options).state_dict())
        layers[-1]["next draw"] = torch.rand(1)
    assert list(layers[0]) == list(layers[1])
    assert all(torch.equal(layers[0][name], layers[1][name]) for name in layers[0])


@for_each(
    {
        "a gate": {"gate": True},
        "a convolution": {"value_convolution": 3},
        "a gain": {"query_key": "normalized"},
    }
)
def test_options_do_not_change_the_random_initialization(options: dict[str, Any]):
    layers = []
    for extra in ({}, options):
        torch.manual_seed(0)
        layers.append(Attention(DIM, HEADS, relative="fourier", **extra).state_dict())
    assert set(layers[0]) < set(layers[1])
    assert all(torch.equal(layers[0][name], layers[1][name]) for name in layers[0])


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_model_with_all_options_is_shift_invariant(pool: str):
    torch.manual_seed(0)
    model = Performer(
        (6, 10),
        2,
        3,
        dim=DIM,
        depth=2,
        heads=HEADS,
        position="fourier",
        periodic=True,
        pool=pool,
        position_heads=1,
        num_waves=3,
        query_key="normalized",
        gate=True,
        value_convolution=3,
    )
    model = model.double().eval()
    for name, parameter in model.named_parameters():
        if "value_convolution" in name:
            nn.init.normal_(parameter)
    images = torch.randn(
        2, 2, 6, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    assert relative_error(model(images.roll((2, 3), (2, 3))), model(images)) < TOLERANCE
