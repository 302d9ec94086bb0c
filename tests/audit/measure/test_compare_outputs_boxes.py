import pytest
import torch

from teka.audit import Movement, measure_responses
from teka.audit.measure.compare_outputs import box_overlap
from teka.audit.model_output import intersection_over_union
from tests.audit.measure.models import relative_errors

SIZE = (20, 30)


def boxes(*rows):
    """Return the detections of first image: x0, y0, x1, y1, then the scores of two classes."""
    return torch.tensor([list(rows)], dtype=torch.float64)


def test_intersection_over_union_equals_hand_computed_values():
    first = torch.tensor([[0.0, 0.0, 4.0, 2.0], [1.0, 1.0, 1.0, 5.0]])
    second = torch.tensor([[2.0, 1.0, 6.0, 3.0], [0.0, 0.0, 4.0, 2.0]])
    assert intersection_over_union(first, second).tolist() == [
        [pytest.approx(2 / 14), 1.0],
        [0.0, 0.0],
    ]


def test_box_overlap_ignores_order_and_scores_below_one_half():
    before = boxes((2, 3, 8, 9, 0.9, 0.1), (10, 5, 16, 11, 0.2, 0.8), (3, 3, 9, 9, 0.4, 0.4))
    after = boxes((13, 4, 19, 10, 0.1, 0.6), (5, 2, 11, 8, 0.5, 0.0), (0, 0, 0, 0, 0, 0))
    assert box_overlap(after, before, (-1, 3), SIZE).tolist() == [1.0]
    assert box_overlap(before, before, (-1, 3), SIZE).item() < 0.5


def test_object_of_another_class_or_without_a_match_has_no_overlap():
    before = boxes((2, 3, 8, 9, 0.9, 0.1), (10, 5, 16, 11, 0.9, 0.0))
    other_class = boxes((2, 3, 8, 9, 0.9, 0.1), (10, 5, 16, 11, 0.0, 0.9))
    missing_object = boxes((2, 3, 8, 9, 0.9, 0.1), (10, 5, 16, 11, 0.3, 0.0))
    assert box_overlap(other_class, before, (0, 0), SIZE).tolist() == [pytest.approx(1 / 3)]
    assert box_overlap(missing_object, before, (0, 0), SIZE).tolist() == [0.5]


def test_box_overlap_ignores_boxes_that_cross_the_edge():
    before = boxes((2, 3, 8, 9, 0.9, 0.1), (20, 5, 28, 11, 0.9, 0.0))
    after = boxes((7, 3, 13, 9, 0.9, 0.1), (0, 3, 3, 9, 0.9, 0.1))
    assert box_overlap(after, before, (0, 5), SIZE).tolist() == [1.0]
    nothing = boxes((2, 3, 8, 9, 0.1, 0.1))
    assert box_overlap(nothing, nothing, (0, 5), SIZE).tolist() == [1.0]


def test_equivariant_detector_has_overlap_one_and_a_constant_one_zero():
    images = torch.zeros(3, 1, *SIZE)
    images[:, :, 8, 12] = 1.0

    def detect(batch):
        index = batch.flatten(1).argmax(dim=1)
        y, x = index // SIZE[1], index % SIZE[1]
        return torch.stack([x - 1, y - 1, x + 2, y + 2, torch.ones_like(x)], dim=1)[
            :, None
        ].double()

    shifts = [(0, 0), (0, 3), (-2, 1)]
    found = measure_responses(
        detect, images, shifts, Movement("circular"), output="boxes", batch_size=4
    )
    assert found.overlap is not None
    assert found.overlap.tolist() == [[1.0] * 3] * 3
    assert relative_errors(found).max() == 0
    constant = measure_responses(
        lambda batch: detect(images[: len(batch)]),
        images,
        shifts,
        Movement("zero"),
        output="boxes",
        batch_size=3,
    )
    assert constant.overlap is not None
    assert constant.overlap[1].tolist() == [0.0] * 3
    with pytest.raises(
        ValueError, match=r"of shape \(9, 1, 20, 30\), expected .*\(batch, boxes, 4 \+ classes\)"
    ):
        measure_responses(lambda batch: batch, images, shifts, Movement("zero"), output="boxes")
