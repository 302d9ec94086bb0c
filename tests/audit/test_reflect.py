import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from teka.audit.reflect import reflect


@st.composite
def sizes_and_shift(draw):
    sizes = draw(st.sampled_from([(11,), (5, 7), (3, 4, 2)]))
    return sizes, tuple(draw(st.integers(-side, side)) for side in sizes)


@settings(max_examples=50, deadline=None)
@given(sizes_and_shift())
def test_it_is_a_window_of_the_mirrored_image(case):
    sizes, shift = case
    images = np.arange(6 * np.prod(sizes), dtype=np.float64).reshape(2, 3, *sizes)
    mirrored = np.pad(images, [(0, 0), (0, 0), *((side, side) for side in sizes)], mode="reflect")
    inside = tuple(slice(side - step, 2 * side - step) for side, step in zip(sizes, shift, strict=True))
    moved = reflect(torch.from_numpy(images), shift)
    assert np.array_equal(moved.numpy(), mirrored[(slice(None), slice(None), *inside)])


def test_the_edge_cell_is_not_repeated():
    line = torch.arange(5).reshape(1, 1, 5)
    assert reflect(line, (2,)).flatten().tolist() == [2, 1, 0, 1, 2]
    assert reflect(line, (-2,)).flatten().tolist() == [2, 3, 4, 3, 2]


def test_a_single_cell_stays():
    assert torch.equal(reflect(torch.ones(1, 1, 1, 3), (1, 0)), torch.ones(1, 1, 1, 3))


@pytest.mark.parametrize("shift", [(0, 0), (1, -2)])
def test_the_images_are_left_alone(shift):
    images = torch.rand(2, 1, 5, 7)
    before = images.clone()
    reflect(images, shift).zero_()
    assert torch.equal(images, before)
