import pytest
import torch
from torch.nn.functional import pixel_unshuffle

from teka.nn import InvertibleDownsampling


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
def test_the_inverse_gives_the_same_numbers_back(factor: int, sides: tuple[int, ...]):
    maps = torch.randn(2, 3, *sides)
    layer = InvertibleDownsampling(factor, num_axes=len(sides))
    fewer = layer(maps)
    assert fewer.shape == (2, 3 * factor ** len(sides), *(side // factor for side in sides))
    assert torch.equal(layer.inverse(fewer), maps)
    assert torch.equal(layer(layer.inverse(fewer)), fewer)


def test_with_two_axes_it_is_the_pixel_unshuffle_of_torch():
    maps = torch.randn(2, 5, 6, 9)
    assert torch.equal(InvertibleDownsampling(3)(maps), pixel_unshuffle(maps, 3))


def test_every_channel_of_a_cell_is_the_one_that_the_equation_says():
    maps = torch.arange(2 * 4 * 6 * 2).reshape(1, 2, 4, 6, 2).float()
    fewer = InvertibleDownsampling(2, num_axes=3)(maps)
    for channel, first, second, third in ((0, 0, 0, 1), (1, 1, 0, 1), (1, 1, 1, 0)):
        place = channel * 8 + first * 4 + second * 2 + third
        assert fewer[0, place, 1, 2, 0] == maps[0, channel, 2 + first, 4 + second, third]


def test_a_shift_by_a_block_is_one_by_a_cell():
    maps, layer = torch.randn(2, 3, 6, 8), InvertibleDownsampling()
    assert torch.equal(layer(maps.roll((2, -4), (2, 3))), layer(maps).roll((1, -2), (2, 3)))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 3, 5, 6), r"maps has shape \(2, 3, 5, 6\), expected .* 2 sides, multiples of factor = 2"),
        ((2, 3, 6), r"maps has shape \(2, 3, 6\)"),
    ],
)
def test_maps_that_have_no_whole_blocks_are_an_error(shape: tuple[int, ...], message: str):
    with pytest.raises(ValueError, match=message):
        InvertibleDownsampling()(torch.zeros(shape))


@pytest.mark.parametrize("shape", [(2, 6, 3, 3), (2, 4, 3)])
def test_maps_that_came_from_no_blocks_are_an_error(shape: tuple[int, ...]):
    with pytest.raises(ValueError, match="multiple of 4 channels"):
        InvertibleDownsampling().inverse(torch.zeros(shape))


@pytest.mark.parametrize(("sizes", "message"), [((0, 2), "factor is 0"), ((2, 0), "num_axes is 0")])
def test_a_size_below_one_is_refused(sizes: tuple[int, int], message: str):
    with pytest.raises(ValueError, match=message):
        InvertibleDownsampling(*sizes)
