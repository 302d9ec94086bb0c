import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from teka import Grid
from teka.audit import blank_margins
from teka.audit.background import background_value, check_lossless


def test_margins_are_the_blank_cells_before_and_after_the_content():
    image = torch.zeros(1, 2, 5, 7)
    image[0, 0, 1, 2] = 1.0
    image[0, 1, 3, 4] = -1.0
    assert blank_margins(image).tolist() == [[[1, 1], [2, 2]]]


@settings(max_examples=30, deadline=None)
@given(st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(0, 2)))
def test_one_lit_voxel_lies_between_its_margins(index):
    volume = torch.zeros(1, 1, 5, 7, 3)
    volume[(0, 0, *index)] = 1.0
    expected = [[before, side - 1 - before] for before, side in zip(index, (5, 7, 3), strict=True)]
    assert blank_margins(volume).tolist() == [expected]


def test_an_image_that_is_all_background_has_margins_of_its_whole_size():
    assert blank_margins(torch.full((1, 1, 5, 7), 0.25), 0.25).tolist() == [[[5, 5], [7, 7]]]


def test_each_channel_may_have_its_own_background():
    image = torch.tensor([0.5, -2.0]).reshape(1, 2, 1).repeat(1, 1, 7)
    image[0, 1, 3] = 0.5
    assert blank_margins(image, (0.5, -2.0)).tolist() == [[[3, 3]]]


def test_content_that_is_not_a_number_counts_as_content():
    image = torch.zeros(1, 1, 7)
    image[0, 0, 2] = torch.nan
    assert blank_margins(image).tolist() == [[[2, 4]]]


def test_the_error_names_every_axis_and_how_many_images_lose_pixels():
    margins = torch.tensor([[[0, 2], [3, 1]], [[4, 2], [3, 0]], [[4, 2], [3, 0]]])
    check_lossless(Grid((5, 7)), margins, (2, -3))
    with pytest.raises(ValueError, match=r"axis 0 \(size 5\) 1 of 3 images.*axis 1 \(size 7\) 2 of 3 images"):
        check_lossless(Grid((5, 7)), margins, (-1, 1))


@pytest.mark.parametrize("background", [(0.0, 1.0, 2.0), float("nan"), float("inf")])
def test_a_background_that_fits_no_channel_or_is_not_finite_is_refused(background):
    with pytest.raises(ValueError, match="background is"):
        background_value(torch.zeros(1, 2, 5), background)


@pytest.mark.parametrize("background", [0.5, -1.0, 256.0])
def test_a_background_that_the_dtype_cannot_hold_is_refused(background):
    with pytest.raises(ValueError, match=r"torch.uint8 holds"):
        background_value(torch.zeros(1, 1, 5, dtype=torch.uint8), background)


@pytest.mark.parametrize(
    "images", [torch.zeros(5, 7), torch.zeros(2, 1, 0), torch.zeros(2, 1, 5, dtype=torch.complex64)]
)
def test_margins_of_what_is_no_batch_of_images_are_refused(images):
    with pytest.raises(ValueError, match=r"images(\.dtype)? (is|has)"):
        blank_margins(images)


def test_an_empty_batch_has_no_margins():
    assert blank_margins(torch.zeros(0, 1, 5, 7)).shape == (0, 2, 2)
