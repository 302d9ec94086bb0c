"""What a model's outputs are, and how far they are from what they should be."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from teka.audit.changes import compared_after
from teka.audit.measure.boxes import box_overlap
from teka.audit.model_output import (
    CLASSIFIERS,
    KIND_BY_NAME,
    MULTILABEL,
    encode_label_sets,
    num_classes_of,
)
from teka.audit.movement import Movement
from teka.audit.shifts import CheckedShift, CheckedShifts
from teka.checks import INTEGER_DTYPES, check_dense, check_dtype
from teka.errors import wrong_argument, wrong_shape, wrong_value
from teka.precision import to_widest_dtype

Maps = Float[Tensor, "batch channels *cells"]
Compared = Float[Tensor, "batch channels *compared"]
Answers = Shaped[Tensor, "batch channels ..."]
Squares = Float[Tensor, " batch"]
Classes = Int[Tensor, "batch *cells"]
Labels = Int[Tensor, " batch"] | None
Tables = dict[str, Shaped[Tensor, " batch"]]
Sizes = Sequence[int]


def check_labels(labels: Tensor, num_images: int) -> Tensor:
    """Return the labels in int64 on the CPU: the class (N,) of each image, or the labels (N, K) that it has.

    Labels (N, K) are 0 and 1, of any dtype; (N, 1) are the classes of a binary classifier.
    """
    check_dense("labels", labels)
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


def fit_labels(labels: Tensor | None, kind: str, num_values: int) -> Labels:
    """Return the labels as what a classifier of a kind predicts: classes, or codes of sets of labels.

    Outputs of other kinds are compared with no labels; those of a class are kept, those of sets are not.

    Raises:
        ValueError: Labels that this classifier cannot predict.
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
    num_classes = num_classes_of(num_values) or 0
    if kind != "classes" and int(labels.max()) >= num_classes:
        expected = f"classes below {num_classes}, of an output of {num_values} {kind}"
        raise wrong_value("labels", int(labels.max()), expected)
    return labels


def check_dense_shifts(
    shifts: CheckedShifts, size: Sizes, stride: Sizes, seen_size: Sizes, movement: Movement
) -> None:
    """Check that maps of some size and stride, of images of the size seen, have an exact counterpart at every shift."""
    mode = movement.mode
    if movement.change is not None:
        return
    sides = list(zip(size, stride, strict=True))
    if movement.wraps and [cells * pixels for cells, pixels in sides] != list(seen_size):
        expected = f"{tuple(seen_size)} over {tuple(size)}, images over maps, since mode {mode!r} has circular edges"
        raise wrong_value("stride", tuple(stride), expected)
    for shift in shifts:
        for (cells, pixels), step in zip(sides, shift, strict=True):
            if (
                step % pixels != 0
                and mode != "fourier"
                and not (mode == "bilinear" and pixels == 1)
            ):
                expected = f"whole multiples of the stride {tuple(stride)} of the model's dense output in mode {mode!r}"
                raise wrong_argument("shifts", f"a set with {tuple(shift)}", expected)
            if not movement.wraps and abs(step) >= cells * pixels:
                expected = f"shifts that leave some of the model's {tuple(size)} cells in sight"
                raise wrong_argument("shifts", f"a set with {tuple(shift)}", expected)


def compared_maps(
    response: Maps, reference: Maps, shift: CheckedShift, stride: Sizes, movement: Movement
) -> tuple[Compared, Compared]:
    """f(T_s x) and T_s f(x), both where the content of the map's cells came from inside."""
    if movement.change is not None:
        return compared_after(response, reference, movement.change, shift[0])
    steps = tuple([step / pixels for step, pixels in zip(shift, stride, strict=True)])
    if movement.wraps:
        reference = movement.move(reference, steps)
    else:
        # The window of a moved map that shows what was in the map before; of the map before it, that of −s.
        ahead, behind = (
            tuple([slice(step, None) if step >= 0 else slice(None, step) for step in whole])
            for whole in ([int(step) for step in steps], [-int(step) for step in steps])
        )
        response, reference = response[(..., *ahead)], reference[(..., *behind)]
    return response, reference


def class_overlap(found: Classes, expected: Classes, num_classes: int) -> Float[Tensor, " batch"]:
    """Mean intersection over union of the cells of each class, over the classes that an image has in either map."""
    first, second = found.flatten(1), expected.flatten(1)
    starts = num_classes * torch.arange(len(first), device=first.device)[:, None]

    def count(classes: Tensor) -> Tensor:
        return torch.bincount(classes.flatten(), minlength=starts.numel() * num_classes).view(
            -1, num_classes
        )

    each = count(starts + first) + count(starts + second)
    shared = count((starts + first)[first == second])
    seen, union = each > 0, each - shared
    shares = to_widest_dtype(torch.where(seen, shared / union.clamp(min=1), 0.0))
    return shares.sum(dim=1) / seen.sum(dim=1)


def box_errors(found: Answers, reference: Answers, shift: CheckedShift, size: Sizes) -> Tables:
    """The tables of `Responses` for boxes that should move along: the error is what is missing of a whole overlap."""
    overlap = box_overlap(found, reference, shift, size)
    return {
        "error_squared": (1 - overlap).square(),
        "norm_squared": torch.ones_like(overlap),
        "overlap": overlap,
    }


def feature_distances(
    output: Float[Tensor, "batch features"],
    unshifted: Float[Tensor, "images features"],
    own: Int[Tensor, " batch"],
) -> Tables:
    """1 − cosine to the image's own features unshifted, and their rank among those of all images, 1 the nearest."""
    found, every = (
        torch.nn.functional.normalize(to_widest_dtype(each)) for each in (output, unshifted)
    )
    cosines = found @ every.T
    # What is nearer by rounding alone, as a copy of the image may be, is not nearer.
    nearer = (cosines > cosines.gather(1, own[:, None]) + 1e-6).sum(dim=1)
    # 1 − cos of unit vectors, without a difference of nearly equal numbers.
    return {"cosine_distance": (found - every[own]).square().sum(dim=1) / 2, "rank": 1 + nearer}


def vector_errors(output: Answers, reference: Answers, labels: Labels, kind: str) -> Tables:
    """The tables of `Responses` for outputs of a kind that should stay as the reference is."""
    if kind == "classes":
        # As vectors of zeros with a one at the class.
        changed = (output != reference).double()[:, 0]
        noted = {"error_squared": 2 * changed, "norm_squared": torch.ones_like(changed)}
    else:
        noted = squares(output, reference)
    row = KIND_BY_NAME[kind]
    if row.predict is not None:
        noted["predictions"] = row.predict(output)
    if row.log_probabilities is None:
        return noted
    log_moved, log_unshifted = row.log_probabilities(output), row.log_probabilities(reference)
    probability, top = log_unshifted.exp(), log_unshifted.argmax(dim=1, keepdim=True)
    noted["probability_change"] = (
        log_moved.gather(1, top).exp() - probability.gather(1, top)
    ).abs()[:, 0]
    # Rounding may bring it below zero.
    noted["divergence"] = (probability * (log_unshifted - log_moved)).sum(dim=1).clamp(min=0)
    if labels is not None:
        noted["loss"] = -log_moved.gather(1, labels.to(output.device)[:, None])[:, 0]
    return noted


def squares(output: Tensor, reference: Tensor) -> Tables:
    """‖output − reference‖² and ‖reference‖² of each entry of a batch."""
    return {
        "error_squared": sum_of_squares(output, reference),
        "norm_squared": sum_of_squares(reference),
    }


def sum_of_squares(values: Tensor, subtracted: Tensor | None = None) -> Squares:
    """‖values − subtracted‖² of each entry of a batch (B, C, …)."""
    # Within a channel in the dtype of the values, but half precision, of which squares overflow soon; over channels in
    # float64. All in float64 takes four times as long, and squares that are written down twice as long as their norm.
    exact = torch.promote_types(values.dtype, torch.float32)
    wide = values.to(exact) if subtracted is None else values.to(exact) - subtracted.to(exact)
    within = torch.linalg.vector_norm(wide.flatten(2), dim=2) if wide.ndim > 2 else wide
    return to_widest_dtype(within).square().sum(dim=1)


def not_finite(output: Tensor) -> Tensor:
    """Which entries of a batch hold NaN or infinity."""
    axes = tuple(range(1, output.ndim))
    # A sum is finite only if all its terms are, and it takes a fortieth of the time of looking at each; where it is
    # not, it may have overflowed.
    if (
        output.sum(dim=axes, dtype=torch.promote_types(output.dtype, torch.float32))
        .isfinite()
        .all()
    ):
        return torch.zeros(len(output), dtype=torch.bool)
    return ~output.isfinite().flatten(1).all(dim=1).cpu()
