"""Detected objects: how much the boxes in a moved image overlap with those of the image itself, moved along."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka.audit.shifts import CheckedShift
from teka.errors import require

Detections = Float[Tensor, "batch boxes numbers"]
Rectangles = Float[Tensor, "boxes 4"]
LEAST_SCORE = 0.5  # of an object that counts as found
WITHIN = 1.0  # pixels between the image's edge and an object that is seen whole


def box_overlap(
    found: Detections, reference: Detections, shift: CheckedShift, size: Sequence[int]
) -> Float[Tensor, " batch"]:
    """How much the objects found in moved images overlap with those of the images unshifted, moved along.

      overlap = Σ IoU(a, b) / (|A| + |B| − number of pairs)

    over pairs of an object a of A, found in the moved image, and b of B, of the image itself and moved along, of one
    class; the pairs are those of the largest sum (Kuhn 1955). An object counts in A and B if its class has a score of
    at least 0.5 and it is seen whole in both images, a pixel or more from the edge: what leaves is not lost. Where A
    and B are empty the overlap is 1. As the panoptic quality of Kirillov et al. 2019 (arXiv:1801.00868), but that
    errors of any size count, and an object too many or too few a whole one.

    Args:
        found: Of the moved images, (B, M, 4 + K): x0, y0, x1, y1 in pixels and a score within [0, 1] of each class.
        reference: Of the images unshifted, likewise.
        shift: (dy, dx) in pixels.
        size: Height and width of the images that the model sees.
    """
    linear_sum_assignment = require(
        "scipy.optimize", "boxes need", "teka[audit]"
    ).linear_sum_assignment
    step = torch.tensor([shift[1], shift[0]] * 2, dtype=torch.float64)
    overlaps = []
    for one, other in zip(found.double().cpu(), reference.double().cpu(), strict=True):
        (boxes, classes), (before, classes_before) = (_objects(each) for each in (one, other))
        seen = _is_whole(boxes, size) & _is_whole(boxes - step, size)
        stay = _is_whole(before, size) & _is_whole(before + step, size)
        shares = intersection_over_union(boxes[seen], before[stay] + step)
        shares = shares * (classes[seen][:, None] == classes_before[stay])
        rows, columns = linear_sum_assignment(shares.numpy(), maximize=True)
        pairs = shares[rows, columns]
        number = sum(shares.shape) - int((pairs > 0).sum())
        overlaps.append(pairs.sum() / number if number else torch.ones((), dtype=torch.float64))
    return torch.stack(overlaps)


def _objects(detections: Float[Tensor, "boxes numbers"]) -> tuple[Tensor, Tensor]:
    """The boxes that count as found, and their classes."""
    score, kind = detections[:, 4:].max(dim=1)
    kept = score >= LEAST_SCORE
    return detections[kept, :4], kind[kept]


def _is_whole(boxes: Rectangles, size: Sequence[int]) -> Bool[Tensor, " boxes"]:
    limit = torch.tensor([size[1], size[0]], dtype=boxes.dtype) - WITHIN
    return (boxes[..., :2] >= WITHIN).all(dim=-1) & (boxes[..., 2:] <= limit).all(dim=-1)


def intersection_over_union(
    boxes: Float[Tensor, "first 4"], others: Float[Tensor, "second 4"]
) -> Float[Tensor, "first second"]:
    """Area of the intersection over that of the union, of every two boxes; 0 of boxes without area."""
    low = torch.maximum(boxes[:, None, :2], others[:, :2])
    high = torch.minimum(boxes[:, None, 2:], others[:, 2:])
    shared = (high - low).clamp(min=0).prod(dim=-1)
    areas = [(each[:, 2:] - each[:, :2]).clamp(min=0).prod(dim=-1) for each in (boxes, others)]
    union = areas[0][:, None] + areas[1] - shared
    return torch.where(union > 0, shared / union, 0.0)
