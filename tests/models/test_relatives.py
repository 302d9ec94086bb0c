from typing import Any

import pytest
import torch
from tests.models.small_performer import build, draw_images, layers

from teka.functional import Focused, SquaredRelu
from teka.functional.relative import ROTARY_NORMALIZERS
from teka.nn import Fourier, Rotary, Rotation


@pytest.mark.parametrize(
    ("position", "expected"), [("none", None), ("absolute", None), ("fourier", "fourier"), ("clipped", "clipped")]
)
def test_positions_without_options_leave_the_relative_kernel_to_the_layer(position: str, expected: str | None):
    for layer in layers(build(position=position, pool="mean")):
        assert (None if layer.relative is None else layer.relative().name) == expected


@pytest.mark.parametrize("position", ["rotation", "rotation_joint"])
def test_frequencies_of_rotation_are_shared_by_the_layers(position: str):
    first, second = layers(build(position=position, pool="mean", kernel="positive"))
    assert first.relative.frequency is second.relative.frequency
    assert first.relative.cosine_weight is not second.relative.cosine_weight


def test_options_of_waves_reach_every_block_that_has_them():
    model = build(position="fourier", num_waves=7, longest_wave=3.0, wave_weight=2.0, pool="mean")
    for layer in layers(model):
        assert isinstance(layer.relative, Fourier)
        kernel = layer.relative()
        assert kernel.frequency.shape == (2, 7, 2)
        assert float(kernel.frequency.detach().norm(dim=-1).min()) > 6.28 / 3.0 - 1e-3
        assert torch.allclose(kernel.amplitude.sum(dim=-1), torch.tensor([2.0, 2.0]))
    assert model(draw_images()).shape == (4, 3)


def test_the_scale_of_rotations_weights_reaches_every_block_that_has_them():
    model = build(position="rotation", rotation_weight_scale=0.0, depth=3)
    placed = [layer.relative for layer in layers(model) if layer.relative is not None]
    assert len(placed) == 2
    for relative in placed:
        assert isinstance(relative, Rotation)
        assert (relative.cosine_weight == 0).all()


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_the_normalizer_of_rotary_reaches_every_block_that_has_one_and_changes_no_weight(pool: str):
    default, first, lengths = (
        build(position="rotary", rotary_normalizer=normalizer, pool=pool, kernel="positive", depth=3)
        for normalizer in (None, ROTARY_NORMALIZERS[0], "lengths")
    )
    placed = [layer.relative for layer in layers(lengths) if layer.relative is not None]
    assert len(placed) == (2 if pool == "class" else 3)
    for relative in placed:
        assert isinstance(relative, Rotary)
        assert relative().normalizer == "lengths"
    for name, tensor in default.state_dict().items():
        assert torch.equal(lengths.state_dict()[name], tensor)
    images = draw_images()
    assert torch.equal(first(images), default(images))
    assert not torch.allclose(lengths(images), default(images))


@pytest.mark.parametrize("position", ["fourier", "rotation", "clipped", "table"])
def test_heads_by_position_are_those_of_the_blocks_with_places(position: str):
    model = build(position=position, heads=4, position_heads=3, kernel="squared_relu")
    first, last = layers(model)
    assert (first.content_heads, first.position_heads) == (1, 3)
    assert (last.content_heads, last.position_heads) == (4, 0)
    assert model(draw_images()).shape == (4, 3)


@pytest.mark.parametrize(("kernel", "kind"), [("squared_relu", SquaredRelu), ("focused", Focused)])
def test_a_floor_reaches_the_kernel_of_every_block(kernel: str, kind: type):
    for layer in layers(build(kernel=kernel, epsilon=0.25)):
        assert isinstance(layer.kernel, kind)
        assert layer.kernel == kind(epsilon=0.25)


def test_options_of_the_layers_reach_them_where_they_have_an_effect():
    first, last = layers(build(query_key="normalized", gate=True, value_convolution=3))
    for layer in (first, last):
        assert "query_key.query_gain" in layer.state_dict()
        assert layer.gate is not None
    assert first.value_convolution.weight.shape == (8, 1, 3, 3)
    assert last.value_convolution is None  # only the class token is read
    assert layers(build(value_convolution=3, pool="mean"))[-1].value_convolution is not None


BAD: list[tuple[dict[str, Any], str]] = [
    ({"num_waves": 3}, "num_waves is 3, expected None with position='rotation'; position='fourier' takes it"),
    ({"longest_wave": 3.0, "position": "none"}, "longest_wave is 3.0, expected None with position='none'"),
    ({"wave_weight": 3.0, "position": "table"}, "wave_weight is 3.0, expected None with position='table'"),
    (
        {"rotation_weight_scale": 1.0, "position": "fourier"},
        "rotation_weight_scale is 1.0, expected None with position",
    ),
    ({"rotation_weight_scale": -1.0}, "weight_scale is -1.0, expected a finite number of at least 0"),
    (
        {"rotary_normalizer": "lengths"},
        "rotary_normalizer is 'lengths', expected None with position='rotation'; position='rotary' takes it",
    ),
    (
        {"rotary_normalizer": "length", "position": "rotary"},
        "normalizer is 'length', expected .*; did you mean 'lengths'",
    ),
    (
        {"rotary_normalizer": "lengths", "position": "rotary", "kernel": "softmax"},
        "rotary_normalizer is 'lengths', expected None with kernel='softmax'",
    ),
    ({"num_waves": 0, "position": "fourier"}, "num_waves is 0, expected at least 1"),
    (
        {"position_heads": 1, "position": "absolute"},
        "position_heads is 1, expected None or 0 without a relative kernel",
    ),
    ({"position_heads": 2}, "position_heads is 2, expected 0 to 1, fewer than heads = 2"),
    ({"position_heads": 1, "position": "rotary"}, "position_heads is 1, expected None or 0 with relative='rotary'"),
    (
        {"epsilon": 0.1, "kernel": "softmax"},
        "epsilon is 0.1, expected None with kernel='softmax'; kernel='squared_relu'",
    ),
    ({"epsilon": 0.1, "kernel": SquaredRelu()}, "epsilon is 0.1, expected None with kernel=SquaredRelu"),
    ({"epsilon": 0.0}, "epsilon is 0.0, expected a positive finite number"),
    ({"query_key": "centered"}, "query_key is 'centered', expected .*; did you mean 'centred'"),
    ({"value_convolution": 2}, "value_convolution is 2, expected None or an odd number"),
    ({"value_convolution": 3, "depth": 1, "position": "none"}, "value_convolution is 3, expected None with depth=1"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[str(options) for options, _ in BAD])
def test_an_option_that_would_have_no_effect_is_refused(options: dict[str, Any], message: str, as_users_run_it: None):
    with pytest.raises(ValueError, match=message):
        build(**options)
