import pytest
import torch

from teka.audit import Movement, measure_responses
from teka.audit.measure.outputs import box_overlap, intersection_over_union
from tests.audit.measure.models import relative_error

SIZE = (20, 30)


def boxes(*rows):
    """Detections of one image: x0, y0, x1, y1, then the scores of two classes."""
    return torch.tensor([list(rows)], dtype=torch.float64)


def test_intersection_over_union_is_as_worked_out_by_hand():
    one = torch.tensor([[0.0, 0.0, 4.0, 2.0], [1.0, 1.0, 1.0, 5.0]])
    other = torch.tensor([[2.0, 1.0, 6.0, 3.0], [0.0, 0.0, 4.0, 2.0]])
    assert intersection_over_union(one, other).tolist() == [
        [pytest.approx(2 / 14), 1.0],
        [0.0, 0.0],
    ]


def test_boxes_that_move_along_overlap_wholly_in_any_order_and_scores_below_a_half_do_not_count():
    before = boxes((2, 3, 8, 9, 0.9, 0.1), (10, 5, 16, 11, 0.2, 0.8), (3, 3, 9, 9, 0.4, 0.4))
    after = boxes((13, 4, 19, 10, 0.1, 0.6), (5, 2, 11, 8, 0.5, 0.0), (0, 0, 0, 0, 0, 0))
    assert box_overlap(after, before, (-1, 3), SIZE).tolist() == [1.0]
    assert box_overlap(before, before, (-1, 3), SIZE).item() < 0.5


def test_of_another_class_or_without_a_partner_an_object_is_lost():
    before = boxes((2, 3, 8, 9, 0.9, 0.1), (10, 5, 16, 11, 0.9, 0.0))
    other_class = boxes((2, 3, 8, 9, 0.9, 0.1), (10, 5, 16, 11, 0.0, 0.9))
    one_less = boxes((2, 3, 8, 9, 0.9, 0.1), (10, 5, 16, 11, 0.3, 0.0))
    assert box_overlap(other_class, before, (0, 0), SIZE).tolist() == [pytest.approx(1 / 3)]
    assert box_overlap(one_less, before, (0, 0), SIZE).tolist() == [0.5]


def test_what_leaves_or_enters_at_the_edge_does_not_count():
    before = boxes((2, 3, 8, 9, 0.9, 0.1), (20, 5, 28, 11, 0.9, 0.0))
    after = boxes((7, 3, 13, 9, 0.9, 0.1), (0, 3, 3, 9, 0.9, 0.1))
    assert box_overlap(after, before, (0, 5), SIZE).tolist() == [1.0]
    nothing = boxes((2, 3, 8, 9, 0.1, 0.1))
    assert box_overlap(nothing, nothing, (0, 5), SIZE).tolist() == [1.0]


def test_a_detector_of_the_brightest_pixel_moves_along_and_one_that_stays_does_not():
    images = torch.zeros(3, 1, *SIZE)
    images[:, :, 8, 12] = 1.0

    def detect(batch):
        place = batch.flatten(1).argmax(dim=1)
        y, x = place // SIZE[1], place % SIZE[1]
        return torch.stack([x - 1, y - 1, x + 2, y + 2, torch.ones_like(x)], dim=1)[
            :, None
        ].double()

    shifts = [(0, 0), (0, 3), (-2, 1)]
    found = measure_responses(
        detect, images, shifts, Movement("circular"), output="boxes", batch_size=4
    )
    assert found.overlap is not None
    assert found.overlap.tolist() == [[1.0] * 3] * 3
    assert relative_error(found).max() == 0
    still = measure_responses(
        lambda batch: detect(images[: len(batch)]),
        images,
        shifts,
        Movement("zero"),
        output="boxes",
        batch_size=3,
    )
    assert still.overlap is not None
    assert still.overlap[1].tolist() == [0.0] * 3
    with pytest.raises(
        ValueError, match=r"of shape \(9, 1, 20, 30\), expected .*\(batch, boxes, 4 \+ classes\)"
    ):
        measure_responses(lambda batch: batch, images, shifts, Movement("zero"), output="boxes")
