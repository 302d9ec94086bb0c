"""What a model's outputs are, and how far they are from what they should be."""

import operator
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from teka._compat import precise
from teka.audit.changes import compared_after
from teka.audit.images import Size
from teka.audit.measure.boxes import box_overlap
from teka.audit.measure.responses import OUTPUTS
from teka.audit.movement import Movement
from teka.audit.shifts import CheckedShift, CheckedShifts
from teka.checks import WHOLE, check_stride, check_tensor
from teka.errors import wrong_shape, wrong_value

OUTPUT_CHOICES = ("auto", *OUTPUTS)
MAPS = ("dense", "segmentation")
Maps = Float[Tensor, "batch channels *cells"]
Compared = Float[Tensor, "batch channels *compared"]
Answers = Float[Tensor, "batch channels ..."]
Squares = Float[Tensor, " batch"]
Classes = Int[Tensor, "batch *cells"]
Labels = Int[Tensor, " batch"] | None
Tables = dict[str, Shaped[Tensor, " batch"]]
Sizes = Sequence[int]
Stride = tuple[int, ...] | None


def infer_output(shape: Sizes, seen: Sizes, output: str = "auto", stride: Size | None = None) -> tuple[str, Stride]:
    """Kind and stride of an output (B, …) of images of some spatial size, as `measure_responses` describes them."""
    sizes, is_logits = tuple(shape[2:]), len(shape) == 2 and shape[1] >= 2
    is_map = len(shape) == 2 + len(seen)
    divides = is_map and not any(map(operator.mod, seen, sizes))
    if output == "auto":
        if is_map and (stride is not None or (divides and max(sizes) > 1)):
            output = "dense"
        else:
            output = "logits" if is_logits else "features"
    if output in MAPS:
        if not is_map or (output == "segmentation" and shape[1] < 2):
            channels = "channels" if output == "dense" else "classes"
            expected = f"(batch, {channels}{', size' * len(seen)}), since the output is said to be {output}"
            raise wrong_shape("the output of the model", shape, expected)
        if stride is None and not divides:
            expected = f"sizes that divide {tuple(seen)}, those of the images; or give stride"
            raise wrong_shape("the output of the model", shape, expected)
        covering = tuple(map(operator.floordiv, seen, sizes))
        return output, covering if stride is None else check_stride(stride, len(sizes))
    if stride is not None:
        raise wrong_value("stride", stride, f"None, since an output of shape {tuple(shape)} is not a dense one")
    if output == "logits" and not is_logits:
        raise wrong_shape("the output of the model", shape, "(batch, classes) with two or more classes, of logits")
    if output == "boxes" and (len(shape) != 3 or shape[2] < 5 or len(seen) != 2):
        raise wrong_shape("the output of the model", shape, "(batch, boxes, 4 + classes), of boxes in images")
    return output, None


def check_labels(labels: Tensor, num_images: int) -> Tensor:
    """The labels in int64 on the CPU, one class for each image."""
    check_tensor("labels", labels, num_images, dtypes=WHOLE)
    if (labels < 0).any():
        raise wrong_value("labels", int(labels.min()), "classes of at least 0")
    return labels.to("cpu", torch.int64)


def check_dense_shifts(shifts: CheckedShifts, size: Sizes, stride: Sizes, seen_size: Sizes, movement: Movement) -> None:
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
            if step % pixels != 0 and mode != "fourier" and not (mode == "bilinear" and pixels == 1):
                expected = f"whole multiples of the stride {tuple(stride)} of the model's dense output in mode {mode!r}"
                raise wrong_value("shifts", f"a set with {tuple(shift)}", expected)
            if not movement.wraps and abs(step) >= cells * pixels:
                expected = f"shifts that leave some of the model's {tuple(size)} cells in sight"
                raise wrong_value("shifts", f"a set with {tuple(shift)}", expected)


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
        return torch.bincount(classes.flatten(), minlength=starts.numel() * num_classes).view(-1, num_classes)

    each = count(starts + first) + count(starts + second)
    shared = count((starts + first)[first == second])
    seen, union = each > 0, each - shared
    shares = precise(torch.where(seen, shared / union.clamp(min=1), 0.0))
    return shares.sum(dim=1) / seen.sum(dim=1)


def box_errors(found: Answers, reference: Answers, shift: CheckedShift, size: Sizes) -> Tables:
    """The tables of `Responses` for boxes that should move along: the error is what is missing of a whole overlap."""
    overlap = box_overlap(found, reference, shift, size)
    return {"error_squared": (1 - overlap).square(), "norm_squared": torch.ones_like(overlap), "overlap": overlap}


def feature_distances(
    output: Float[Tensor, "batch features"], unshifted: Float[Tensor, "images features"], own: Int[Tensor, " batch"]
) -> Tables:
    """1 − cosine to the image's own features unshifted, and their rank among those of all images, 1 the nearest."""
    found, every = (torch.nn.functional.normalize(precise(each)) for each in (output, unshifted))
    cosines = found @ every.T
    # What is nearer by rounding alone, as a copy of the image may be, is not nearer.
    nearer = (cosines > cosines.gather(1, own[:, None]) + 1e-6).sum(dim=1)
    # 1 − cos of unit vectors, without a difference of nearly equal numbers.
    return {"cosine_distance": (found - every[own]).square().sum(dim=1) / 2, "rank": 1 + nearer}


def vector_errors(output: Answers, reference: Answers, labels: Labels, is_logits: bool) -> Tables:
    """The tables of `Responses` for outputs that should stay as the reference is."""
    noted = squares(output, reference)
    if not is_logits:
        return noted
    log_moved, log_unshifted = precise(torch.stack([output, reference])).log_softmax(dim=2)
    probability, top = log_unshifted.exp(), reference.argmax(dim=1, keepdim=True)
    noted["predictions"] = output.argmax(dim=1)
    noted["probability_change"] = (log_moved.gather(1, top).exp() - probability.gather(1, top)).abs()[:, 0]
    # Rounding may bring it below zero.
    noted["divergence"] = (probability * (log_unshifted - log_moved)).sum(dim=1).clamp(min=0)
    if labels is not None:
        noted["loss"] = -log_moved.gather(1, labels.to(output.device)[:, None])[:, 0]
    return noted


def squares(output: Tensor, reference: Tensor) -> Tables:
    """‖output − reference‖² and ‖reference‖² of each entry of a batch."""
    return {"error_squared": sum_of_squares(output, reference), "norm_squared": sum_of_squares(reference)}


def sum_of_squares(values: Tensor, subtracted: Tensor | None = None) -> Squares:
    """‖values − subtracted‖² of each entry of a batch (B, C, …)."""
    # Within a channel in the dtype of the values, but half precision, of which squares overflow soon; over channels in
    # float64. All in float64 takes four times as long, and squares that are written down twice as long as their norm.
    exact = torch.promote_types(values.dtype, torch.float32)
    wide = values.to(exact) if subtracted is None else values.to(exact) - subtracted.to(exact)
    within = torch.linalg.vector_norm(wide.flatten(2), dim=2) if wide.ndim > 2 else wide
    return precise(within).square().sum(dim=1)


def not_finite(output: Tensor) -> Tensor:
    """Which entries of a batch hold NaN or infinity."""
    axes = tuple(range(1, output.ndim))
    # A sum is finite only if all its terms are, and it takes a fortieth of the time of looking at each; where it is
    # not, it may have overflowed.
    if output.sum(dim=axes, dtype=torch.promote_types(output.dtype, torch.float32)).isfinite().all():
        return torch.zeros(len(output), dtype=torch.bool)
    return ~output.isfinite().flatten(1).all(dim=1).cpu()
