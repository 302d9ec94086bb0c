import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import avg_pool2d

from teka.audit.measure.response_table import check_dense_shifts, dense_error, sum_of_squares
from teka.audit.movement import Movement

HEIGHT, WIDTH = 12, 18
IMAGES = torch.rand(3, 2, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
MODES = ("circular", "zero", "reflect", "fourier", "bilinear")


def moved(movement, shift):
    return movement.move(IMAGES, shift)


@pytest.mark.parametrize("mode", MODES)
@given(st.integers(-11, 11), st.integers(-17, 17))
def test_what_moves_along_has_no_error(mode, down, right):
    movement = Movement(mode)
    error, _ = dense_error(moved(movement, (down, right)), IMAGES, (down, right), (1, 1), movement)
    assert error.max() <= (1e-24 if mode == "fourier" else 0)


@given(st.integers(-5, 5), st.integers(-5, 5))
def test_pooled_maps_have_no_error_at_whole_cells(down, right):
    stride, shift = (2, 3), (2 * down, 3 * right)
    for mode in ("circular", "zero"):
        movement = Movement(mode)
        reference, response = avg_pool2d(IMAGES, stride), avg_pool2d(moved(movement, shift), stride)
        error, _ = dense_error(response, reference, shift, stride, movement)
        assert error.max() <= 1e-28


def test_with_circular_edges_every_cell_counts():
    error, norm = dense_error(IMAGES, IMAGES, (1, -4), (1, 1), Movement("circular"))
    rolled = IMAGES.roll((1, -4), (2, 3))
    torch.testing.assert_close(error, (IMAGES - rolled).square().sum((1, 2, 3)))
    torch.testing.assert_close(norm, IMAGES.square().sum((1, 2, 3)))


def test_without_circular_edges_only_cells_that_came_from_inside_count():
    response = torch.zeros_like(IMAGES)
    error, norm = dense_error(response, IMAGES, (4, -6), (2, 3), Movement("zero"))
    # A map whose cells are 2 × 3 pixels moves by (2, −2) cells: its last two rows and its first two columns leave.
    left = IMAGES[:, :, :-2, 2:].square().sum((1, 2, 3))
    torch.testing.assert_close(error, left)
    torch.testing.assert_close(norm, left)


def test_a_fraction_of_a_cell_is_the_same_interpolation_of_the_map():
    movement = Movement("fourier")
    error, _ = dense_error(moved(movement, (0.5, -1.25)), IMAGES, (1, -2.5), (2, 2), movement)
    assert error.max() <= 1e-24


def test_half_precision_is_summed_without_overflow():
    values = torch.full((1, 4), 300.0, dtype=torch.float16)
    assert sum_of_squares(values).tolist() == [360000.0]
    assert sum_of_squares(values, -values).tolist() == [1440000.0]


@pytest.mark.parametrize(
    ("mode", "shift", "stride", "message"),
    [
        ("circular", (0, 1), (2, 3), r"\(0, 1\).*multiples of the stride \(2, 3\).*'circular'"),
        ("zero", (3, 0), (2, 3), "multiples of the stride"),
        ("bilinear", (0.5, 0), (2, 3), "multiples of the stride"),
        ("zero", (12, 0), (2, 3), r"leave some of the model's \(6, 6\) cells"),
    ],
)
def test_shifts_without_a_counterpart_are_refused(mode, shift, stride, message):
    with pytest.raises(ValueError, match=message):
        check_dense_shifts([(0, 0), shift], (6, 6), stride, (HEIGHT, WIDTH), Movement(mode))


@pytest.mark.parametrize(
    ("mode", "shift", "size", "stride"),
    [
        ("circular", (12, 18), (6, 6), (2, 3)),
        ("fourier", (0.5, 1), (6, 6), (2, 3)),
        ("bilinear", (0.5, 3), (12, 6), (1, 3)),
        ("zero", (9, 15), (10, 16), (1, 1)),
    ],
)
def test_shifts_with_a_counterpart_are_passed(mode, shift, size, stride):
    check_dense_shifts([shift], size, stride, (HEIGHT, WIDTH), Movement(mode))


def test_maps_that_do_not_cover_the_images_are_refused_with_circular_edges():
    with pytest.raises(ValueError, match=r"stride is \(1, 1\), expected \(12, 18\) over \(10, 16\)"):
        check_dense_shifts([(1, 1)], (10, 16), (1, 1), (HEIGHT, WIDTH), Movement("circular"))
