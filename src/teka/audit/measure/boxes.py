"""Overlap between objects detected in shifted images and in the original images."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka.audit.shifts import CheckedShift
from teka.errors import require

Detections = Float[Tensor, "batch boxes numbers"]
Rectangles = Float[Tensor, "boxes 4"]
LEAST_SCORE = 0.5  # minimum score of a detected object
WITHIN = 1.0  # minimum distance in pixels between a complete object and the edge of the image


def box_overlap(
    found: Detections, reference: Detections, shift: CheckedShift, size: Sequence[int]
) -> Float[Tensor, " batch"]:
    """Compute the overlap between detections in shifted images and the shifted detections.

      overlap = Σ IoU(a, b) / (|A| + |B| − number of pairs)

    A is the set of objects detected in the shifted image. B is the set of objects detected in the
    original image, moved by the shift. The sum is over pairs (a, b) of the same class, which are
    matched so that the sum is as large as possible (Kuhn 1955). If A and B are empty, the overlap
    is 1.

    An object counts if its score is at least 0.5 and if it lies at least one pixel inside the edges
    of both images, so that objects that leave the image do not matter. The overlap resembles
    panoptic quality (Kirillov et al. 2019, arXiv:1801.00868), but pairs have no minimum IoU, and
    unmatched objects have their full weight.

    Args:
        found: Detections in the shifted images, (B, M, 4 + K): x0, y0, x1, y1 in pixels and a
            score within [0, 1] for each class.
        reference: Detections in the original images, in the same format.
        shift: (dy, dx) in pixels.
        size: Height and width of the model's input.
    """
    linear_sum_assignment = require(
        "scipy.optimize", "boxes need", "teka[audit]"
    ).linear_sum_assignment
    step = torch.tensor([shift[1], shift[0]] * 2, dtype=torch.float64)
    overlaps = []
    for detected, expected in zip(found.double().cpu(), reference.double().cpu(), strict=True):
        boxes, classes = _objects(detected)
        before, classes_before = _objects(expected)
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
    """Return the boxes and classes of objects with a sufficient score."""
    score, kind = detections[:, 4:].max(dim=1)
    kept = score >= LEAST_SCORE
    return detections[kept, :4], kind[kept]


def _is_whole(boxes: Rectangles, size: Sequence[int]) -> Bool[Tensor, " boxes"]:
    limit = torch.tensor([size[1], size[0]], dtype=boxes.dtype) - WITHIN
    return (boxes[..., :2] >= WITHIN).all(dim=-1) & (boxes[..., 2:] <= limit).all(dim=-1)


def intersection_over_union(
    boxes: Float[Tensor, "first 4"], others: Float[Tensor, "second 4"]
) -> Float[Tensor, "first second"]:
    """Return the intersection over union of every pair of boxes, 0 for boxes without area."""
    low = torch.maximum(boxes[:, None, :2], others[:, :2])
    high = torch.minimum(boxes[:, None, 2:], others[:, 2:])
    shared = (high - low).clamp(min=0).prod(dim=-1)
    areas = [(each[:, 2:] - each[:, :2]).clamp(min=0).prod(dim=-1) for each in (boxes, others)]
    union = areas[0][:, None] + areas[1] - shared
    return torch.where(union > 0, shared / union, 0.0)
