import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import avg_pool2d

from teka.audit import axis_shifts, square_shifts
from teka.audit.measure.measure_responses import measure_responses
from teka.audit.measure.outputs import (
    align_maps,
    check_map_shifts,
    compare_vectors,
    segmentation_overlap,
    squared_errors,
)
from teka.audit.movement import Movement
from teka.audit.statistics.metrics import summarize
from tests.audit.measure import models
from tests.raising import raises_for

HEIGHT, WIDTH = 12, 18
IMAGES = torch.rand(
    3, 2, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64
)
CIRCULAR, ZERO = Movement("circular"), Movement("zero")
SHIFTS = square_shifts(3)
MODES = ("circular", "zero", "reflect", "fourier", "bilinear")


def moved(movement, shift):
    return movement.move(IMAGES, shift)


def errors(*given):
    return squared_errors(*align_maps(*given)).values()


@pytest.mark.parametrize("mode", MODES)
@given(st.integers(-11, 11), st.integers(-17, 17))
def test_what_moves_along_has_no_error(mode, down, right):
    movement = Movement(mode)
    error, _ = errors(moved(movement, (down, right)), IMAGES, (down, right), (1, 1), movement)
    assert error.max() <= (1e-24 if mode == "fourier" else 0)


@given(st.integers(-5, 5), st.integers(-5, 5))
def test_pooled_maps_have_no_error_at_whole_cells(down, right):
    stride, shift = (2, 3), (2 * down, 3 * right)
    for mode in ("circular", "zero"):
        movement = Movement(mode)
        reference, response = avg_pool2d(IMAGES, stride), avg_pool2d(moved(movement, shift), stride)
        error, _ = errors(response, reference, shift, stride, movement)
        assert error.max() <= 1e-28


def test_with_circular_edges_every_cell_counts():
    error, norm = errors(IMAGES, IMAGES, (1, -4), (1, 1), Movement("circular"))
    rolled = IMAGES.roll((1, -4), (2, 3))
    torch.testing.assert_close(error, (IMAGES - rolled).square().sum((1, 2, 3)))
    torch.testing.assert_close(norm, IMAGES.square().sum((1, 2, 3)))


def test_without_circular_edges_only_cells_that_came_from_inside_count():
    response = torch.zeros_like(IMAGES)
    error, norm = errors(response, IMAGES, (4, -6), (2, 3), Movement("zero"))
    # A map whose cells are 2 × 3 pixels moves by (2, −2) cells: its last two rows and its first two columns leave.
    left = IMAGES[:, :, :-2, 2:].square().sum((1, 2, 3))
    torch.testing.assert_close(error, left)
    torch.testing.assert_close(norm, left)


def test_a_fraction_of_a_cell_is_the_same_interpolation_of_the_map():
    movement = Movement("fourier")
    error, _ = errors(moved(movement, (0.5, -1.25)), IMAGES, (1, -2.5), (2, 2), movement)
    assert error.max() <= 1e-24


def test_half_precision_and_large_outputs_are_summed_without_overflow():
    values = torch.full((1, 4), 300.0, dtype=torch.float16)
    errors = squared_errors(-values, values)
    assert errors["norm_squared"].tolist() == [360000.0]
    assert errors["error_squared"].tolist() == [1440000.0]
    large = torch.full((1, 4), 1e25)
    assert squared_errors(large, large)["norm_squared"].item() == pytest.approx(4e50)


def test_shifts_without_a_counterpart_are_refused():
    for mode, shift, stride, message in [
        ("circular", (0, 1), (2, 3), r"multiples of the stride \(2, 3\).*\(0, 1\).*'circular'"),
        ("zero", (3, 0), (2, 3), "multiples of the stride"),
        ("bilinear", (0.5, 0), (2, 3), "multiples of the stride"),
        ("zero", (12, 0), (2, 3), r"which has \(6, 6\) cells"),
    ]:
        with raises_for((mode, shift, stride), ValueError, match=message):
            check_map_shifts(((0, 0), shift), (6, 6), stride, (HEIGHT, WIDTH), Movement(mode))


def test_shifts_with_a_counterpart_are_passed():
    for mode, shift, size, stride in [
        ("circular", (12, 18), (6, 6), (2, 3)),
        ("fourier", (0.5, 1), (6, 6), (2, 3)),
        ("bilinear", (0.5, 3), (12, 6), (1, 3)),
        ("zero", (9, 15), (10, 16), (1, 1)),
    ]:
        check_map_shifts((shift,), size, stride, (HEIGHT, WIDTH), Movement(mode))


def test_maps_that_do_not_cover_the_images_are_refused_with_circular_edges():
    with pytest.raises(
        ValueError, match=r"stride must be \(12, 18\) over \(10, 16\).*got \(1, 1\)"
    ):
        check_map_shifts(((1, 1),), (10, 16), (1, 1), (HEIGHT, WIDTH), Movement("circular"))


@pytest.mark.parametrize(("down", "right"), [(0, 0), (2, 3), (-5, 1)])
def test_a_delayed_identity_moves_along_exactly(down, right):
    result = measure_responses(
        lambda images: images.roll((down, right), (2, 3)), models.IMAGES, SHIFTS, CIRCULAR
    )
    assert result.output == "dense"
    assert not result.error_squared.any()
    torch.testing.assert_close(
        result.norm_squared, models.IMAGES.square().sum((1, 2, 3)).expand(len(SHIFTS), -1)
    )


def test_a_delayed_identity_moves_along_by_fractions_too():
    shifts = [(0, 0), (0.5, -0.25), (1.75, 3)]
    result = measure_responses(
        lambda images: images.roll(2, 3), models.IMAGES, shifts, Movement("fourier")
    )
    assert models.relative_error(result).max() <= 1e-13


def test_taking_every_second_pixel_moves_along_exactly_by_even_shifts():
    for mode in ["circular", "zero"]:
        images, steps = torch.rand(3, 1, 8, 12, dtype=torch.float64), (-4, -2, 0, 2, 4)
        shifts = tuple(itertools.product(steps, steps))
        result = measure_responses(
            lambda images: images[..., ::2, ::2], images, shifts, Movement(mode)
        )
        assert (result.output, result.error_squared.any().item()) == ("dense", False), mode


def test_taking_every_second_pixel_has_no_counterpart_at_odd_shifts():
    with pytest.raises(ValueError, match=r"multiples of the stride \(2, 2\)"):
        measure_responses(
            lambda images: images[..., ::2, ::2], torch.rand(3, 1, 8, 12), axis_shifts(1), CIRCULAR
        )


def test_a_ramp_over_the_columns_has_the_error_worked_out_by_hand():
    columns = [3, 6, 9]
    ramp = torch.arange(1.0, models.WIDTH + 1, dtype=torch.float64)
    result = measure_responses(
        lambda images: images * ramp, models.points(columns), axis_shifts(3), ZERO
    )
    for row, (_, right) in enumerate(result.shifts):
        assert result.error_squared[row].tolist() == [float(right**2)] * 3
        assert result.norm_squared[row].tolist() == [float((column + 1) ** 2) for column in columns]


def test_what_leaves_the_image_is_not_compared():
    result = measure_responses(
        lambda images: 2 * images, models.points([1, 11]), [(0, 0), (0, -2)], ZERO
    )
    assert result.error_squared.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert result.norm_squared.tolist() == [[4.0, 4.0], [0.0, 4.0]]


def test_a_convolution_without_padding_is_compared_once_its_stride_is_given():
    for movement in [ZERO, Movement("crop", crop_size=(7, 9))]:
        convolution = nn.Conv2d(2, 3, 3).double().eval()
        result = measure_responses(convolution, models.IMAGES, axis_shifts(2), movement, stride=1)
        assert result.output == "dense", movement
        assert models.relative_error(result).max() <= 1e-13, movement
        padded = nn.Conv2d(2, 3, 3, padding=1).double().eval()
        result = measure_responses(padded, models.IMAGES, axis_shifts(2), movement)
        assert models.relative_error(result).max() > 1e-3, movement


def test_a_segmentation_that_moves_along_overlaps_wholly_and_one_that_stays_as_worked_out_by_hand():
    images = torch.zeros(2, 1, 4, 6)
    images[:, :, 1:3, 1:3] = 1.0

    def segment(batch):
        return torch.cat([1 - batch, batch], dim=1)

    def stays(batch):
        return segment(images[: len(batch)])

    shifts = [(0, 0), (0, 1), (1, 2)]
    for mode in ("circular", "zero"):
        responses = measure_responses(
            segment, images, shifts, Movement(mode), output="segmentation", batch_size=2
        )
        assert responses.overlap is not None
        assert responses.overlap.tolist() == [[1.0] * 2] * 3
        assert summarize(responses, num_resamples=40).numbers["overlap"].value == 1.0
    overlap = measure_responses(
        stays, images, shifts, CIRCULAR, output="segmentation", batch_size=2
    ).overlap
    assert overlap is not None
    # By one column 2 of the 4 cells stay, of a union of 6; of the ground 18 of 22. By (1, 2) none, and 16 of 24.
    assert overlap[:, 0].tolist() == pytest.approx([1.0, (2 / 6 + 18 / 22) / 2, (0 + 16 / 24) / 2])
    with pytest.raises(
        ValueError, match=r"of shape \(6, 1, 4, 6\), expected a floating-point map of logits"
    ):
        measure_responses(lambda batch: batch, images, shifts, CIRCULAR, output="segmentation")


@given(st.integers(1, 5), st.integers(0, 2**32))
def test_overlap_of_classes_is_that_of_sets_of_cells(num_classes, seed):
    first, second = torch.randint(
        num_classes, (2, 3, 5, 7), generator=torch.Generator().manual_seed(seed)
    )
    for row, found in enumerate(segmentation_overlap(first, second, num_classes)):
        cells = [
            [
                set((one[row] == kind).flatten().nonzero().flatten().tolist())
                for one in (first, second)
            ]
            for kind in range(num_classes)
        ]
        shares = [len(one & other) / len(one | other) for one, other in cells if one | other]
        assert found == pytest.approx(sum(shares) / len(shares))


def test_features_are_found_again_by_the_cosine_to_those_of_all_images():
    images = torch.eye(5).reshape(5, 1, 1, 5)
    responses = measure_responses(
        lambda batch: batch.flatten(1),
        images,
        [(0, 0), (0, 1)],
        CIRCULAR,
        output="features",
        batch_size=3,
    )
    assert responses.rank is not None
    assert responses.cosine_distance is not None
    # Moved by one column each image is another one of them, which is nearer; the other three are as far as its own.
    assert responses.rank.tolist() == [[1] * 5, [2] * 5]
    assert responses.cosine_distance.tolist() == [[0.0] * 5, [1.0] * 5]
    numbers = summarize(responses, num_resamples=40).numbers
    assert numbers["retrieval"].value == 0.0


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_the_change_of_probability_is_that_of_the_class_without_a_shift(kind):
    unshifted = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.2, 0.6]], dtype=torch.float64)
    shifted = torch.tensor([[0.1, 0.8, 0.1], [0.1, 0.2, 0.7]], dtype=torch.float64)
    if kind == "logits":
        unshifted, shifted = unshifted.log(), shifted.log()
    change = compare_vectors(shifted, unshifted, kind)["probability_change"]
    torch.testing.assert_close(change, torch.tensor([0.5, 0.1], dtype=torch.float64))


def test_a_single_logit_is_that_of_the_second_class():
    logits = torch.tensor([[0.7], [0.9]], dtype=torch.float64).logit()
    change = compare_vectors(logits[:1], logits[1:], "logits")["probability_change"]
    torch.testing.assert_close(change, torch.tensor([0.2], dtype=torch.float64))
