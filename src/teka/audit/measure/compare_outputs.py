"""Comparison of a model's outputs for shifted images with those for unshifted images.

Labels are checked here too, and encoded like the predictions of a classifier.
"""

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from teka.audit.model_output import (
    CLASSIFIERS,
    KINDS,
    MIN_SCORE,
    MULTILABEL,
    Boxes,
    Sizes,
    encode_label_sets,
    intersection_over_union,
)
from teka.audit.movement import Movement
from teka.audit.shifts import CheckedShift, CheckedShifts
from teka.checks import INTEGER_DTYPES, check_dense_tensor, check_dtype
from teka.errors import require, wrong_argument, wrong_shape, wrong_value
from teka.precision import to_widest_dtype

WITHIN = 1.0  # minimum distance in pixels between a complete object and the edge of the image
Maps = Float[Tensor, "batch channels *cells"]
Compared = Float[Tensor, "batch channels *compared"]
Row = Float[Tensor, " batch"]  # one number for each image
Classes = Int[Tensor, "batch *cells"]
Tables = dict[str, Shaped[Tensor, " batch"]]


def box_overlap(found: Boxes, reference: Boxes, shift: CheckedShift, size: Sizes) -> Row:
    """Measure how well the objects detected in each shifted image overlap with the expected ones.

    The expected objects are those detected in the original image, moved by the shift. Detected and
    expected objects of the same class are matched in pairs. The overlap is the mean intersection
    over union (IoU) of the pairs, where each object without a match counts as 0:

      overlap = Σ IoU(a, b) / (|A| + |B| − number of pairs)

    - A is the set of detected objects, and B is the set of expected objects.
    - (a, b) are the matched pairs, chosen so that the sum is as large as possible (Kuhn 1955).

    If both sets are empty, the overlap is 1. Only objects with a score of at least 0.5 are used.
    They must also lie at least one pixel inside the edges of both images, so that objects that
    leave the image do not matter. The overlap resembles panoptic quality (Kirillov et al. 2019,
    arXiv:1801.00868), but pairs have no minimum IoU, and unmatched objects have their full weight.

    Args:
        found: Detections (B, M, 4 + K) in the shifted images. The last axis contains x0, y0, x1
            and y1 in pixels, and a score within [0, 1] for each class.
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
        boxes, classes = _find_complete_objects(detected, -step, size)
        before, classes_before = _find_complete_objects(expected, step, size)
        shares = intersection_over_union(boxes, before + step)
        shares = shares * (classes[:, None] == classes_before)
        rows, columns = linear_sum_assignment(shares.numpy(), maximize=True)
        pairs = shares[rows, columns]
        number = sum(shares.shape) - int((pairs > 0).sum())
        overlaps.append(pairs.sum() / number if number else torch.ones((), dtype=torch.float64))
    return torch.stack(overlaps)


def _find_complete_objects(
    detections: Float[Tensor, "boxes numbers"], step: Tensor, size: Sizes
) -> tuple[Tensor, Tensor]:
    """Return the boxes and classes of objects that are inside the image before and after a shift.

    Objects with a score below `MIN_SCORE` do not count as detected.
    """
    boxes = detections[:, :4]
    score, kind = detections[:, 4:].max(dim=1)
    counts = (score >= MIN_SCORE) & _is_inside(boxes, size) & _is_inside(boxes + step, size)
    return boxes[counts], kind[counts]


def _is_inside(boxes: Float[Tensor, "boxes 4"], size: Sizes) -> Bool[Tensor, " boxes"]:
    limit = torch.tensor([size[1], size[0]], dtype=boxes.dtype) - WITHIN
    return (boxes[..., :2] >= WITHIN).all(dim=-1) & (boxes[..., 2:] <= limit).all(dim=-1)


def parse_labels(labels: Tensor, num_images: int) -> Tensor:
    """Check classes (N,) or multi-label targets (N, K), and convert them to int64 on the CPU.

    Multi-label targets are 0 or 1 and may have any dtype. Targets (N, 1) are treated as the classes
    of a binary classifier.

    Raises:
        ValueError: The labels have a wrong shape, dtype or value.
    """
    check_dense_tensor("labels", labels)
    if labels.ndim not in (1, 2) or len(labels) != num_images or 0 in labels.shape[1:]:
        raise wrong_shape(
            "labels", labels.shape, f"({num_images},), or ({num_images}, labels) of 0 and 1"
        )
    if labels.ndim == 2:
        if not ((labels == 0) | (labels == 1)).all():
            raise wrong_argument(
                "labels",
                "other than 0 and 1",
                f"0 or 1 for each label, of shape {tuple(labels.shape)}",
            )
        labels = labels.long()
        return (labels[:, 0] if labels.shape[1] == 1 else labels).cpu()
    check_dtype("labels", labels, None if labels.dtype == torch.bool else INTEGER_DTYPES)
    if (labels < 0).any():
        raise wrong_value("labels", int(labels.min()), "classes of at least 0")
    return labels.to("cpu", torch.int64)


def encode_labels(labels: Tensor | None, kind: str, num_values: int) -> Tensor | None:
    """Convert labels to the format of a classifier's predictions, so that they can be compared.

    For a multi-label classifier, each row of targets becomes an integer, see `encode_label_sets`.
    Classes are returned unchanged. If the model is not a classifier, multi-label targets are
    replaced by None.

    Raises:
        ValueError: The classifier cannot predict these labels.
    """
    if labels is None or kind not in CLASSIFIERS:
        return None if labels is None or labels.ndim == 2 else labels
    if kind in MULTILABEL:
        if tuple(labels.shape) != (len(labels), num_values):
            raise wrong_shape(
                "labels",
                labels.shape,
                f"({len(labels)}, {num_values}) of 0 and 1, one for each label",
            )
        return encode_label_sets(labels)
    if labels.ndim == 2:
        raise wrong_shape(
            "labels",
            labels.shape,
            f"({len(labels)},), the class of each image, for an output of {kind}",
        )
    num_classes = max(num_values, 2)  # a single value means two classes
    if kind != "classes" and int(labels.max()) >= num_classes:
        expected = f"classes below {num_classes}, of an output of {num_values} {kind}"
        raise wrong_value("labels", int(labels.max()), expected)
    return labels


def check_map_shifts(
    shifts: CheckedShifts, size: Sizes, stride: Sizes, seen_size: Sizes, movement: Movement
) -> None:
    """Check that an output map can be moved along with the image by every shift.

    The shifts must move the map by whole cells, unless the mode interpolates between cells.

    Args:
        shifts: The shifts of the images.
        size: Size of the output map.
        stride: Pixels per cell of the map.
        seen_size: Size of the model's input.
        movement: How the images are shifted.

    Raises:
        ValueError: A shift or the stride does not fit the map.
    """
    mode = movement.mode
    sides = list(zip(size, stride, strict=True))
    if movement.wraps and [cells * pixels for cells, pixels in sides] != list(seen_size):
        expected = f"{tuple(seen_size)} over {tuple(size)} in mode {mode!r}"
        hint = "In a mode with circular edges, the output must cover the whole image."
        raise wrong_value("stride", tuple(stride), expected, hint)
    for shift in shifts:
        for (cells, pixels), step in zip(sides, shift, strict=True):
            is_interpolated = mode == "fourier" or (mode == "bilinear" and pixels == 1)
            if step % pixels and not is_interpolated:
                expected = f"multiples of the stride {tuple(stride)} of the dense output"
                hint = (
                    f"Mode {mode!r} only moves the output by whole cells. Choose steps of {pixels} "
                    f"pixels. If the output does not move with the image, set output to features."
                )
                raise wrong_argument("shifts", f"a set with {tuple(shift)}", expected, hint)
            if not movement.wraps and abs(step) >= cells * pixels:
                expected = f"smaller than the dense output, which has {tuple(size)} cells"
                raise wrong_argument("shifts", f"a set with {tuple(shift)}", expected)


def align_maps(
    response: Maps, reference: Maps, shift: CheckedShift, stride: Sizes, movement: Movement
) -> tuple[Compared, Compared]:
    """Align the output maps of shifted and unshifted images, so that they can be compared.

    With circular edges, the map of the unshifted images is moved like the images. In all other
    modes, both maps are cropped to the cells whose content is inside the image before and after the
    shift.

    Args:
        response: Map f(T_s x) of the shifted images.
        reference: Map f(x) of the unshifted images.
        shift: Shift s of the images in pixels.
        stride: Pixels per cell of the maps.
        movement: How the images were shifted.
    """
    steps = tuple([step / pixels for step, pixels in zip(shift, stride, strict=True)])
    if movement.wraps:
        return response, movement.move(reference, steps)
    # Crop both maps to the content that they share.
    for axis, step in enumerate(map(int, steps), 2):
        num_cells = response.shape[axis] - abs(step)
        response = response.narrow(axis, max(step, 0), num_cells)
        reference = reference.narrow(axis, max(-step, 0), num_cells)
    return response, reference


def segmentation_overlap(found: Classes, expected: Classes, num_classes: int) -> Row:
    """Return the mean intersection over union of two segmentation maps for each image.

    The mean is over the classes that occur in at least one of the two maps.
    """
    first = found.flatten(1)
    second = expected.flatten(1)
    starts = num_classes * torch.arange(len(first), device=first.device)[:, None]

    def count(classes: Tensor) -> Tensor:
        return torch.bincount(classes.flatten(), minlength=starts.numel() * num_classes).view(
            -1, num_classes
        )

    total = count(starts + first) + count(starts + second)
    shared = count((starts + first)[first == second])
    seen = total > 0
    union = total - shared
    shares = to_widest_dtype(torch.where(seen, shared / union.clamp(min=1), 0.0))
    return shares.sum(dim=1) / seen.sum(dim=1)


def compare_features(
    output: Float[Tensor, "batch features"],
    unshifted: Float[Tensor, "images features"],
    indices: Int[Tensor, " batch"],
) -> Tables:
    """Compare the features of each shifted image with the features of all unshifted images.

    Args:
        output: Features of the shifted images.
        unshifted: Features of all unshifted images.
        indices: Index in `unshifted` of the image that was shifted, for each row of `output`.

    Returns:
        For each shifted image, the cosine distance to its unshifted version, and the rank of its
        unshifted version among all unshifted images, sorted by distance. The nearest has rank 1.
    """
    features, references = (
        torch.nn.functional.normalize(to_widest_dtype(each)) for each in (output, unshifted)
    )
    cosines = features @ references.T
    # Ignore differences of the size of rounding errors, so that copies of an image rank equally.
    nearer = (cosines > cosines.gather(1, indices[:, None]) + 1e-6).sum(dim=1)
    # Compute 1 − cosine of unit vectors without a difference of nearly equal numbers.
    distance = (features - references[indices]).square().sum(dim=1) / 2
    return {"cosine_distance": distance, "rank": 1 + nearer}


def compare_invariant_outputs(output: Tensor, reference: Tensor, kind: str) -> Tables:
    """Compare outputs that should not change if the image is shifted, such as logits.

    Returns:
        Squared errors and squared norms for each image. For classifiers, also the predictions and
        the changes of probabilities, as in `Responses`.
    """
    if kind == "classes":
        # Treat classes as one-hot vectors.
        changed = (output != reference).double()[:, 0]
        errors = {"error_squared": 2 * changed, "norm_squared": torch.ones_like(changed)}
    else:
        errors = squared_errors(output, reference)
    row = KINDS[kind]
    if row.predict is not None:
        errors["predictions"] = row.predict(output)
    if row.log_probabilities is not None:
        unshifted = row.log_probabilities(reference).exp()
        top = unshifted.argmax(dim=1, keepdim=True)
        change = row.log_probabilities(output).exp() - unshifted
        errors["probability_change"] = change.gather(1, top).abs()[:, 0]
    return errors


def squared_errors(output: Tensor, reference: Tensor) -> Tables:
    """Compute ‖output − reference‖² and ‖reference‖² for each image of a batch (B, C, …)."""
    # Squares in half precision would overflow.
    dtype = torch.promote_types(output.dtype, torch.float32)
    expected = reference.to(dtype)
    return {
        "error_squared": _squared_norm(output.to(dtype) - expected),
        "norm_squared": _squared_norm(expected),
    }


def _squared_norm(values: Tensor) -> Row:
    # Sum within channels in the dtype of the values, and over channels in float64. All sums in
    # float64 would take four times as long, and materialized squares twice as long as the norm.
    within = torch.linalg.vector_norm(values.flatten(2), dim=2) if values.ndim > 2 else values
    return to_widest_dtype(within).square().sum(dim=1)
