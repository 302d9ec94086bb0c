"""Absolute positions, pooling and invertible down-sampling."""

import math
from typing import Any

import pytest
import torch
from tests.contracts.cases import relative_error
from torch.nn.functional import pixel_unshuffle

from teka import Grid
from teka.nn import AbsolutePosition, AbsoluteTable, AttentionPool, SpaceToDepth


@pytest.mark.parametrize(("shape", "dim"), [((7,), 6), ((3, 5), 12), ((2, 3, 4), 6)])
def test_position_embedding_adds_sines_and_cosines(shape: tuple[int, ...], dim: int):
    grid = Grid(shape, 0.5)
    position = AbsolutePosition(dim, grid.num_axes).double()
    waves = position(torch.zeros(2, grid.num_tokens, dim, dtype=torch.float64), grid)
    per_axis = dim // grid.num_axes
    for token, place in enumerate(grid.positions(dtype=torch.float64).tolist()):
        expected = []
        for coordinate in place:
            phases = [coordinate * 10000 ** (-2 * f / per_axis) for f in range(per_axis // 2)]
            expected += [math.sin(phase) for phase in phases] + [
                math.cos(phase) for phase in phases
            ]
        assert waves[1, token].tolist() == pytest.approx(expected, abs=1e-5)


def test_position_embedding_keeps_tokens_and_dtype():
    grid, position = Grid((3, 5)), AbsolutePosition(8)
    tokens = torch.randn(2, 15, 8)
    assert torch.allclose(
        position(tokens, grid) - position(torch.zeros_like(tokens), grid), tokens, atol=1e-6
    )
    assert position(tokens.bfloat16(), grid).dtype == torch.bfloat16


def test_half_precision_does_not_round_positions():
    grid, position = Grid(600), AbsolutePosition(4, 1).bfloat16()
    tokens = torch.zeros(1, 600, 4)
    expected = position.float()(tokens, grid)
    assert (position.bfloat16()(tokens.bfloat16(), grid) - expected).abs().max() <= 0.01


def test_frequencies_of_the_position_embedding_learn():
    position = AbsolutePosition(8)
    position(torch.zeros(1, 15, 8), Grid((3, 5))).sum().backward()
    assert position.frequency.shape == (2,)
    assert position.frequency.grad is not None
    assert (position.frequency.grad != 0).all()


@pytest.mark.parametrize(("dim", "num_axes"), [(6, 2), (8, 3)])
def test_size_must_be_a_multiple_of_the_axes(dim: int, num_axes: int):
    with pytest.raises(ValueError, match=rf"dim must be a multiple of.*got {dim}"):
        AbsolutePosition(dim, num_axes)


@pytest.mark.parametrize("grid", [Grid((15,)), Grid((3, 4))])
def test_grid_of_another_size_is_an_error(grid: Grid):
    with pytest.raises(ValueError, match="2 axes and 15 tokens"):
        AbsolutePosition(8)(torch.zeros(1, 15, 8), grid)


def test_absolute_table_adds_a_vector_per_cell():
    module, tokens = AbsoluteTable(4, (3, 5)), torch.randn(2, 15, 4)
    added = module(tokens, Grid((3, 5), spacing=0.1)) - tokens
    torch.testing.assert_close(added, module.table.expand(2, -1, -1))
    assert module.table.std() < 0.1
    with pytest.raises(ValueError, match=r"a teka.Grid of shape \(3, 5\)"):
        module(tokens, Grid((5, 3)))


def build(**options: Any) -> AttentionPool:
    torch.manual_seed(0)
    return AttentionPool(6, 2, **options).double()


def test_attention_pool_equals_loops():
    pool, tokens = build(num_queries=3), torch.randn(2, 7, 6, dtype=torch.float64)
    output = pool(tokens)
    assert output.shape == (2, 3, 6)
    key, value = pool.key(tokens), pool.value(tokens)
    for batch in range(2):
        for number in range(3):
            heads = []
            for head in range(2):
                part = slice(3 * head, 3 * head + 3)
                scores = (
                    torch.stack([pool.query[number, part] @ key[batch, j, part] for j in range(7)])
                    / 3**0.5
                )
                heads.append(torch.softmax(scores, 0) @ value[batch, :, part])
            assert relative_error(output[batch, number], pool.output(torch.cat(heads))) < 1e-12


def test_every_parameter_of_attention_pool_learns():
    pool, tokens = build(), torch.randn(2, 7, 6, dtype=torch.float64)
    pool(tokens).square().sum().backward()
    for name, parameter in pool.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().max() > 1e-8, name


def test_masked_tokens_have_no_effect():
    pool, tokens = build(), torch.randn(2, 7, 6, dtype=torch.float64)
    mask = torch.tensor([[True] * 4 + [False] * 3]).expand(2, -1)
    assert relative_error(pool(tokens, mask), pool(tokens[:, :4])) < 1e-12


def test_bias_is_optional():
    assert build().value.bias is not None
    assert build(qkv_bias=False).value.bias is None
    assert build().key.bias is None  # it would cancel


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, 1), r"dim must be .*got 0"),
        ((6, 0, 1), r"heads must be .*got 0"),
        ((6, 4, 1), "heads must be a divisor of dim = 6.*got 4"),
        ((6, 2, 0), r"num_queries must be .*got 0"),
    ],
)
def test_wrong_sizes_are_errors(arguments: tuple[int, int, int], message: str):
    dim, heads, num_queries = arguments
    with pytest.raises(ValueError, match=message):
        AttentionPool(dim, heads, num_queries=num_queries)


@pytest.mark.parametrize("size", [(2, 6), (2, 7, 5), (2, 7, 6, 1)])
def test_tokens_of_a_wrong_shape_are_errors(size: tuple[int, ...], unchecked_annotations: None):
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
def test_space_to_depth_can_be_inverted(factor: int, sides: tuple[int, ...]):
    maps = torch.randn(2, 3, *sides)
    layer = SpaceToDepth(factor, num_axes=len(sides))
    fewer = layer(maps)
    assert fewer.shape == (2, 3 * factor ** len(sides), *(side // factor for side in sides))
    assert torch.equal(layer.inverse(fewer), maps)
    assert torch.equal(layer(layer.inverse(fewer)), fewer)


def test_space_to_depth_equals_pixel_unshuffle():
    maps = torch.randn(2, 5, 6, 9)
    assert torch.equal(SpaceToDepth(3)(maps), pixel_unshuffle(maps, 3))


def test_space_to_depth_equals_its_equation():
    maps = torch.arange(2 * 4 * 6 * 2).reshape(1, 2, 4, 6, 2).float()
    fewer = SpaceToDepth(2, num_axes=3)(maps)
    for channel, first, second, third in ((0, 0, 0, 1), (1, 1, 0, 1), (1, 1, 1, 0)):
        place = channel * 8 + first * 4 + second * 2 + third
        assert fewer[0, place, 1, 2, 0] == maps[0, channel, 2 + first, 4 + second, third]


def test_shift_by_a_block_is_a_shift_by_a_cell():
    maps, layer = torch.randn(2, 3, 6, 8), SpaceToDepth()
    assert torch.equal(layer(maps.roll((2, -4), (2, 3))), layer(maps).roll((1, -2), (2, 3)))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 3, 5, 6), r"maps must have .* 2 sides, multiples of factor = 2.*got \(2, 3, 5, 6\)"),
        ((2, 3, 6), r"maps must have .*got \(2, 3, 6\)"),
    ],
)
def test_sides_must_be_multiples_of_the_block(shape: tuple[int, ...], message: str):
    with pytest.raises(ValueError, match=message):
        SpaceToDepth()(torch.zeros(shape))


@pytest.mark.parametrize("shape", [(2, 6, 3, 3), (2, 4, 3)])
def test_inverse_needs_enough_channels(shape: tuple[int, ...]):
    with pytest.raises(ValueError, match="multiple of 4 channels"):
        SpaceToDepth().inverse(torch.zeros(shape))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [((0, 2), r"factor must be .*got 0"), ((2, 0), r"num_axes must be .*got 0")],
)
def test_sizes_below_one_are_errors(sizes: tuple[int, int], message: str):
    with pytest.raises(ValueError, match=message):
        SpaceToDepth(*sizes)
