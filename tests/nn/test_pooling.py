"""Attention pooling and space to depth."""

from typing import Any

import pytest
import torch
from torch.nn.functional import pixel_unshuffle

from teka.nn import AttentionPool, SpaceToDepth
from tests.contracts.cases import relative_error


def build(**options: Any) -> AttentionPool:
    torch.manual_seed(0)
    return AttentionPool(6, 2, **options).double()


def test_pooling_is_the_formula():
    pool, tokens = build(num_queries=3), torch.randn(2, 7, 6, dtype=torch.float64)
    output = pool(tokens)
    assert output.shape == (2, 3, 6)
    key, value = pool.key(tokens), pool.value(tokens)
    for batch in range(2):
        for index in range(3):
            heads = []
            for head in range(2):
                part = slice(3 * head, 3 * head + 3)
                scores = (
                    torch.stack([pool.query[index, part] @ key[batch, j, part] for j in range(7)])
                    / 3**0.5
                )
                heads.append(torch.softmax(scores, 0) @ value[batch, :, part])
            assert relative_error(output[batch, index], pool.output(torch.cat(heads))) < 1e-12


def test_every_parameter_has_a_gradient():
    pool, tokens = build(), torch.randn(2, 7, 6, dtype=torch.float64)
    pool(tokens).square().sum().backward()
    for name, parameter in pool.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().max() > 1e-8, name


def test_masked_tokens_have_no_effect():
    pool, tokens = build(), torch.randn(2, 7, 6, dtype=torch.float64)
    mask = torch.tensor([[True] * 4 + [False] * 3]).expand(2, -1)
    assert relative_error(pool(tokens, mask), pool(tokens[:, :4])) < 1e-12


def test_only_values_and_outputs_have_a_bias():
    assert build().value.bias is not None
    assert build(qkv_bias=False).value.bias is None
    assert build().key.bias is None  # It would cancel in the softmax.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, 1), r"dim must be .*got 0"),
        ((6, 0, 1), r"heads must be .*got 0"),
        ((6, 4, 1), "heads must be a divisor of dim = 6.*got 4"),
        ((6, 2, 0), r"num_queries must be .*got 0"),
    ],
)
def test_a_bad_size_is_an_error(arguments: tuple[int, int, int], message: str):
    dim, heads, num_queries = arguments
    with pytest.raises(ValueError, match=message):
        AttentionPool(dim, heads, num_queries=num_queries)


@pytest.mark.parametrize("size", [(2, 6), (2, 7, 5), (2, 7, 6, 1)])
def test_tokens_with_a_wrong_shape_are_an_error(size: tuple[int, ...], unchecked_annotations: None):
    with pytest.raises(ValueError, match=r"tokens must have shape \(batch, tokens, 6\)"):
        build()(torch.zeros(size, dtype=torch.float64))


@pytest.mark.parametrize(
    ("factor", "sides"),
    [
        pytest.param(2, (6,), id="one axis"),
        pytest.param(2, (6, 10), id="two axes"),
        pytest.param(3, (6, 9), id="blocks of three"),
        pytest.param(2, (4, 6, 10), id="three axes"),
        pytest.param(1, (5, 7), id="blocks of one"),
    ],
)
def test_the_inverse_restores_the_input(factor: int, sides: tuple[int, ...]):
    maps = torch.randn(2, 3, *sides)
    layer = SpaceToDepth(factor, num_axes=len(sides))
    fewer = layer(maps)
    assert fewer.shape == (2, 3 * factor ** len(sides), *(side // factor for side in sides))
    assert torch.equal(layer.inverse(fewer), maps)
    assert torch.equal(layer(layer.inverse(fewer)), fewer)


def test_space_to_depth_on_two_axes_is_pixel_unshuffle():
    maps = torch.randn(2, 5, 6, 9)
    assert torch.equal(SpaceToDepth(3)(maps), pixel_unshuffle(maps, 3))


def test_channels_are_in_the_order_of_the_formula():
    maps = torch.arange(2 * 4 * 6 * 2).reshape(1, 2, 4, 6, 2).float()
    fewer = SpaceToDepth(2, num_axes=3)(maps)
    for channel, first, second, third in ((0, 0, 0, 1), (1, 1, 0, 1), (1, 1, 1, 0)):
        index = channel * 8 + first * 4 + second * 2 + third
        assert fewer[0, index, 1, 2, 0] == maps[0, channel, 2 + first, 4 + second, third]


def test_a_shift_by_a_block_is_a_shift_by_a_cell():
    maps, layer = torch.randn(2, 3, 6, 8), SpaceToDepth()
    assert torch.equal(layer(maps.roll((2, -4), (2, 3))), layer(maps).roll((1, -2), (2, 3)))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 3, 5, 6), r"maps must have .* 2 sides, multiples of factor = 2.*got \(2, 3, 5, 6\)"),
        ((2, 3, 6), r"maps must have .*got \(2, 3, 6\)"),
    ],
)
def test_sides_not_divisible_by_the_factor_are_an_error(shape: tuple[int, ...], message: str):
    with pytest.raises(ValueError, match=message):
        SpaceToDepth()(torch.zeros(shape))


@pytest.mark.parametrize("shape", [(2, 6, 3, 3), (2, 4, 3)])
def test_a_wrong_number_of_channels_is_an_error(shape: tuple[int, ...]):
    with pytest.raises(ValueError, match="multiple of 4 channels"):
        SpaceToDepth().inverse(torch.zeros(shape))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [((0, 2), r"factor must be .*got 0"), ((2, 0), r"num_axes must be .*got 0")],
)
def test_a_size_below_1_is_an_error(sizes: tuple[int, int], message: str):
    with pytest.raises(ValueError, match=message):
        SpaceToDepth(*sizes)
