import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import avg_pool2d

from teka.audit.measure.outputs import (
    OutputKind,
    check_dense_shifts,
    check_stride,
    dense_error,
    infer_output,
    sum_of_squares,
)
from teka.audit.movement import Movement


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((3, 10), OutputKind("logits")),
        ((3, 1), OutputKind("features")),
        ((3, 4, 5), OutputKind("features")),
        ((3, 4, 12, 18), OutputKind("dense", (1, 1))),
        ((3, 4, 6, 6), OutputKind("dense", (2, 3))),
        ((3, 4, 1, 9), OutputKind("dense", (12, 2))),
        ((3, 4, 1, 1), OutputKind("features")),
        ((3, 4, 5, 9), OutputKind("features")),
    ],
)
def test_the_kind_follows_from_the_shape(shape, expected):
    assert infer_output(shape, (12, 18)) == expected


def test_a_choice_goes_before_the_shape():
    assert infer_output((3, 10), (12, 18), "features") == OutputKind("features")
    assert infer_output((3, 4, 6, 6), (12, 18), "features") == OutputKind("features")
    assert infer_output((3, 4, 1, 1), (12, 18), "dense") == OutputKind("dense", (12, 18))


def test_a_stride_makes_maps_of_other_sizes_dense():
    assert infer_output((3, 4, 10, 16), (12, 18), stride=1) == OutputKind("dense", (1, 1))
    assert infer_output((3, 4, 5, 5), (12, 18), "dense", (2, 3)) == OutputKind("dense", (2, 3))


@pytest.mark.parametrize(
    ("shape", "output", "stride", "message"),
    [
        ((3, 10), "logit", None, "output is 'logit'.*did you mean 'logits'"),
        ((3, 10), "dense", None, r"shape \(3, 10\), expected \(batch, channels, size, size\)"),
        ((3, 4, 5, 9), "dense", None, r"expected sizes that divide \(12, 18\).*give stride"),
        ((3, 4, 6), "logits", None, r"shape \(3, 4, 6\), expected \(batch, classes\)"),
        ((3, 1), "logits", None, "two or more classes"),
        ((3, 10), "auto", 2, r"stride is 2, expected None"),
    ],
)
def test_an_output_of_another_kind_is_refused(shape, output, stride, message):
    with pytest.raises(ValueError, match=message):
        infer_output(shape, (12, 18), output, stride)


@pytest.mark.parametrize("stride", [0, (2, 2, 2), (2, 0), (1.5, 2)])
def test_a_stride_that_is_none_is_refused(stride, as_users_run_it):
    with pytest.raises(ValueError, match="stride is"):
        check_stride(stride, 2)


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
