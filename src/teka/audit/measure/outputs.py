"""What a model's outputs are, and how far they are from what they should be."""

import operator
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from teka.audit.images import Size
from teka.audit.measure.responses import OUTPUTS
from teka.audit.movement import Movement
from teka.audit.shifts import CheckedShift, CheckedShifts
from teka.checks import WHOLE, check_stride, check_tensor
from teka.errors import wrong_shape, wrong_value

OUTPUT_CHOICES = ("auto", *OUTPUTS)
Maps = Float[Tensor, "batch channels *cells"]
Answers = Float[Tensor, "batch channels ..."]
Squares = Float[Tensor, " batch"]
SquarePair = tuple[Squares, Squares]
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
    if output == "dense":
        if not is_map:
            expected = f"(batch, channels{', size' * len(seen)}), since the output is said to be dense"
            raise wrong_shape("the output of the model", shape, expected)
        if stride is None and not divides:
            expected = f"sizes that divide {tuple(seen)}, those of the images; or give stride"
            raise wrong_shape("the output of the model", shape, expected)
        covering = tuple(map(operator.floordiv, seen, sizes))
        return "dense", covering if stride is None else check_stride(stride, len(sizes))
    if stride is not None:
        raise wrong_value("stride", stride, f"None, since an output of shape {tuple(shape)} is not a dense one")
    if output == "logits" and not is_logits:
        raise wrong_shape("the output of the model", shape, "(batch, classes) with two or more classes, of logits")
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


def dense_error(response: Maps, reference: Maps, shift: CheckedShift, stride: Sizes, movement: Movement) -> SquarePair:
    """‖f(T_s x) − T_s f(x)‖² and ‖T_s f(x)‖² of each image, over the cells whose content came from inside the map."""
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
    return sum_of_squares(response, reference), sum_of_squares(reference)


def vector_errors(output: Answers, reference: Answers, labels: Labels, is_logits: bool) -> Tables:
    """The tables of `Responses` for outputs that should stay as the reference is."""
    noted = {"error_squared": sum_of_squares(output, reference), "norm_squared": sum_of_squares(reference)}
    if not is_logits:
        return noted
    log_moved, log_unshifted = torch.stack([output, reference]).to(sum_dtype(output.device)).log_softmax(dim=2)
    probability, top = log_unshifted.exp(), reference.argmax(dim=1, keepdim=True)
    noted["predictions"] = output.argmax(dim=1)
    noted["probability_change"] = (log_moved.gather(1, top).exp() - probability.gather(1, top)).abs()[:, 0]
    # Rounding may bring it below zero.
    noted["divergence"] = (probability * (log_unshifted - log_moved)).sum(dim=1).clamp(min=0)
    if labels is not None:
        noted["loss"] = -log_moved.gather(1, labels.to(output.device)[:, None])[:, 0]
    return noted


def sum_of_squares(values: Tensor, subtracted: Tensor | None = None) -> Squares:
    """‖values − subtracted‖² of each entry of a batch (B, C, …)."""
    # Within a channel in the dtype of the values, but half precision, of which squares overflow soon; over channels in
    # float64. All in float64 takes four times as long.
    exact = torch.promote_types(values.dtype, torch.float32)
    squares = values.to(exact).square() if subtracted is None else (values.to(exact) - subtracted.to(exact)).square_()
    within = squares.flatten(2).sum(dim=2) if squares.ndim > 2 else squares
    return within.sum(dim=1, dtype=sum_dtype(values.device))


def sum_dtype(device: torch.device) -> torch.dtype:
    """The dtype in which numbers of many parts are summed: float64, or float32 on devices that lack it."""
    return torch.float32 if device.type == "mps" else torch.float64


def not_finite(output: Tensor) -> Tensor:
    """Which entries of a batch hold NaN or infinity."""
    axes = tuple(range(1, output.ndim))
    # A sum is finite only if all its terms are, and it takes a fortieth of the time of looking at each; where it is
    # not, it may have overflowed.
    if output.sum(dim=axes, dtype=torch.promote_types(output.dtype, torch.float32)).isfinite().all():
        return torch.zeros(len(output), dtype=torch.bool)
    return ~output.isfinite().flatten(1).all(dim=1).cpu()
