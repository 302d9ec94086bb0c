import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import avg_pool2d

from teka.audit import axis_shifts, square_shifts
from teka.audit.measure.compare_outputs import (
    align_maps,
    check_map_shifts,
    compare_invariant_outputs,
    segmentation_overlap,
    squared_errors,
)
from teka.audit.measure.measure_responses import measure_responses
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


def moved_images(movement, shift):
    return movement.move(IMAGES, shift)


def error_and_norm(*arguments):
    return squared_errors(*align_maps(*arguments)).values()


@pytest.mark.parametrize("mode", MODES)
@given(st.integers(-11, 11), st.integers(-17, 17))
def test_equivariant_output_has_no_error(mode, down, right):
    movement = Movement(mode)
    error, _ = error_and_norm(
        moved_images(movement, (down, right)), IMAGES, (down, right), (1, 1), movement
    )
    assert error.max() <= (1e-24 if mode == "fourier" else 0)


@given(st.integers(-5, 5), st.integers(-5, 5))
def test_pooled_maps_have_no_error_at_multiples_of_the_stride(down, right):
    stride, shift = (2, 3), (2 * down, 3 * right)
    for mode in ("circular", "zero"):
        movement = Movement(mode)
        reference, response = (
            avg_pool2d(IMAGES, stride),
            avg_pool2d(moved_images(movement, shift), stride),
        )
        error, _ = error_and_norm(response, reference, shift, stride, movement)
        assert error.max() <= 1e-28


def test_circular_shifts_compare_every_cell():
    error, norm = error_and_norm(IMAGES, IMAGES, (1, -4), (1, 1), Movement("circular"))
    rolled = IMAGES.roll((1, -4), (2, 3))
    torch.testing.assert_close(error, (IMAGES - rolled).square().sum((1, 2, 3)))
    torch.testing.assert_close(norm, IMAGES.square().sum((1, 2, 3)))


def test_zero_shifts_compare_only_cells_from_inside_the_image():
    response = torch.zeros_like(IMAGES)
    error, norm = error_and_norm(response, IMAGES, (4, -6), (2, 3), Movement("zero"))
    # A map with a stride of 2 × 3 pixels moves by (2, −2) cells, so its last two rows and first two columns leave.
    left = IMAGES[:, :, :-2, 2:].square().sum((1, 2, 3))
    torch.testing.assert_close(error, left)
    torch.testing.assert_close(norm, left)


def test_shift_by_a_fraction_of_a_cell_interpolates_the_map():
    movement = Movement("fourier")
    error, _ = error_and_norm(
        moved_images(movement, (0.5, -1.25)), IMAGES, (1, -2.5), (2, 2), movement
    )
    assert error.max() <= 1e-24


def test_errors_of_float16_and_large_outputs_do_not_overflow():
    values = torch.full((1, 4), 300.0, dtype=torch.float16)
    error_and_norm = squared_errors(-values, values)
    assert error_and_norm["norm_squared"].tolist() == [360000.0]
    assert error_and_norm["error_squared"].tolist() == [1440000.0]
    large = torch.full((1, 4), 1e25)
    assert squared_errors(large, large)["norm_squared"].item() == pytest.approx(4e50)


def test_shifts_without_a_matching_shift_of_the_map_are_errors():
    for mode, shift, stride, message in [
        ("circular", (0, 1), (2, 3), r"multiples of the stride \(2, 3\).*\(0, 1\).*'circular'"),
        ("zero", (3, 0), (2, 3), "multiples of the stride"),
        ("bilinear", (0.5, 0), (2, 3), "multiples of the stride"),
        ("zero", (12, 0), (2, 3), r"which has \(6, 6\) cells"),
    ]:
        with raises_for((mode, shift, stride), ValueError, match=message):
            check_map_shifts(((0, 0), shift), (6, 6), stride, (HEIGHT, WIDTH), Movement(mode))


def test_shifts_with_a_matching_shift_of_the_map_are_accepted():
    for mode, shift, size, stride in [
        ("circular", (12, 18), (6, 6), (2, 3)),
        ("fourier", (0.5, 1), (6, 6), (2, 3)),
        ("bilinear", (0.5, 3), (12, 6), (1, 3)),
        ("zero", (9, 15), (10, 16), (1, 1)),
    ]:
        check_map_shifts((shift,), size, stride, (HEIGHT, WIDTH), Movement(mode))


def test_circular_shifts_need_maps_that_cover_the_images():
    with pytest.raises(
        ValueError, match=r"stride must be \(12, 18\) over \(10, 16\).*got \(1, 1\)"
    ):
        check_map_shifts(((1, 1),), (10, 16), (1, 1), (HEIGHT, WIDTH), Movement("circular"))


@pytest.mark.parametrize(("down", "right"), [(0, 0), (2, 3), (-5, 1)])
def test_rolled_identity_has_no_error(down, right):
    result = measure_responses(
        lambda images: images.roll((down, right), (2, 3)), models.IMAGES, SHIFTS, CIRCULAR
    )
    assert result.output == "dense"
    assert not result.error_squared.any()
    torch.testing.assert_close(
        result.norm_squared, models.IMAGES.square().sum((1, 2, 3)).expand(len(SHIFTS), -1)
    )


def test_rolled_identity_has_no_error_at_fractional_shifts():
    shifts = [(0, 0), (0.5, -0.25), (1.75, 3)]
    result = measure_responses(
        lambda images: images.roll(2, 3), models.IMAGES, shifts, Movement("fourier")
    )
    assert models.relative_errors(result).max() <= 1e-13


def test_subsampling_by_two_has_no_error_at_even_shifts():
    for mode in ["circular", "zero"]:
        images, steps = torch.rand(3, 1, 8, 12, dtype=torch.float64), (-4, -2, 0, 2, 4)
        shifts = tuple(itertools.product(steps, steps))
        result = measure_responses(
            lambda images: images[..., ::2, ::2], images, shifts, Movement(mode)
        )
        assert (result.output, result.error_squared.any().item()) == ("dense", False), mode


def test_subsampling_by_two_is_an_error_at_odd_shifts():
    with pytest.raises(ValueError, match=r"multiples of the stride \(2, 2\)"):
        measure_responses(
            lambda images: images[..., ::2, ::2], torch.rand(3, 1, 8, 12), axis_shifts(1), CIRCULAR
        )


def test_multiplied_ramp_has_a_hand_computed_error():
    columns = [3, 6, 9]
    ramp = torch.arange(1.0, models.WIDTH + 1, dtype=torch.float64)
    result = measure_responses(
        lambda images: images * ramp, models.images_of_columns(columns), axis_shifts(3), ZERO
    )
    for row, (_, right) in enumerate(result.shifts):
        assert result.error_squared[row].tolist() == [float(right**2)] * 3
        assert result.norm_squared[row].tolist() == [float((column + 1) ** 2) for column in columns]


def test_pixels_that_leave_the_image_are_not_compared():
    result = measure_responses(
        lambda images: 2 * images, models.images_of_columns([1, 11]), [(0, 0), (0, -2)], ZERO
    )
    assert result.error_squared.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert result.norm_squared.tolist() == [[4.0, 4.0], [0.0, 4.0]]


def test_unpadded_convolution_is_compared_with_an_explicit_stride():
    for movement in [ZERO, Movement("crop", crop_size=(7, 9))]:
        convolution = nn.Conv2d(2, 3, 3).double().eval()
        result = measure_responses(convolution, models.IMAGES, axis_shifts(2), movement, stride=1)
        assert result.output == "dense", movement
        assert models.relative_errors(result).max() <= 1e-13, movement
        padded = nn.Conv2d(2, 3, 3, padding=1).double().eval()
        result = measure_responses(padded, models.IMAGES, axis_shifts(2), movement)
        assert models.relative_errors(result).max() > 1e-3, movement


def test_segmentation_overlap_equals_hand_computed_values():
    images = torch.zeros(2, 1, 4, 6)
    images[:, :, 1:3, 1:3] = 1.0

    def segment(batch):
        return torch.cat([1 - batch, batch], dim=1)

    def constant_segmentation(batch):
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
        constant_segmentation, images, shifts, CIRCULAR, output="segmentation", batch_size=2
    ).overlap
    assert overlap is not None
    # At (0, 1) the object overlaps in 2 of 6 cells and the background in 18 of 22, at (1, 2) in 0 and 16 of 24.
    assert overlap[:, 0].tolist() == pytest.approx([1.0, (2 / 6 + 18 / 22) / 2, (0 + 16 / 24) / 2])
    with pytest.raises(
        ValueError, match=r"of shape \(6, 1, 4, 6\), expected a floating-point map of logits"
    ):
        measure_responses(lambda batch: batch, images, shifts, CIRCULAR, output="segmentation")


@given(st.integers(1, 5), st.integers(0, 2**32))
def test_segmentation_overlap_equals_that_of_sets_of_cells(num_classes, seed):
    first, second = torch.randint(
        num_classes, (2, 3, 5, 7), generator=torch.Generator().manual_seed(seed)
    )
    for row, found in enumerate(segmentation_overlap(first, second, num_classes)):
        cells = [
            [
                set((segmentation[row] == kind).flatten().nonzero().flatten().tolist())
                for segmentation in (first, second)
            ]
            for kind in range(num_classes)
        ]
        shares = [len(a & b) / len(a | b) for a, b in cells if a | b]
        assert found == pytest.approx(sum(shares) / len(shares))


def test_feature_rank_and_cosine_distance_of_shifted_images():
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
    # A shift by one column turns each image into another one, so its own features have rank 2.
    assert responses.rank.tolist() == [[1] * 5, [2] * 5]
    assert responses.cosine_distance.tolist() == [[0.0] * 5, [1.0] * 5]
    numbers = summarize(responses, num_resamples=40).numbers
    assert numbers["retrieval"].value == 0.0


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_probability_change_is_that_of_the_unshifted_prediction(kind):
    unshifted = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.2, 0.6]], dtype=torch.float64)
    shifted = torch.tensor([[0.1, 0.8, 0.1], [0.1, 0.2, 0.7]], dtype=torch.float64)
    if kind == "logits":
        unshifted, shifted = unshifted.log(), shifted.log()
    change = compare_invariant_outputs(shifted, unshifted, kind)["probability_change"]
    torch.testing.assert_close(change, torch.tensor([0.5, 0.1], dtype=torch.float64))


def test_probability_change_of_a_single_logit():
    logits = torch.tensor([[0.7], [0.9]], dtype=torch.float64).logit()
    change = compare_invariant_outputs(logits[:1], logits[1:], "logits")["probability_change"]
    torch.testing.assert_close(change, torch.tensor([0.2], dtype=torch.float64))
