"""What a model's output is: its kind, the stride of a dense one, and how far it is from having moved along."""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from teka.audit.measure.responses import OUTPUTS
from teka.audit.movement import Movement
from teka.errors import unknown_name, wrong_shape, wrong_value

OUTPUT_CHOICES = ("auto", *OUTPUTS)


@dataclass(frozen=True)
class OutputKind:
    """What a model's output is.

    Args:
        name: "logits", "features" or "dense".
        stride: Pixels for one cell of a dense output along every axis; None of the others.
    """

    name: str
    stride: tuple[int, ...] | None = None


def infer_output(
    shape: Sequence[int], seen_size: Sequence[int], output: str = "auto", stride: int | Sequence[int] | None = None
) -> OutputKind:
    """The kind of an output of some shape (the batch first), of images of the spatial size that the model gets.

    For "auto", (B, K) with K ≥ 2 is logits; (B, C', *S') with as many spatial axes as the images is dense if its sizes
    divide those of the images and are not all 1, or if a stride is given; all else is features.

    Raises:
        ValueError: An unknown kind, a shape that is not of this kind, sizes that no stride explains, or a stride for
            what is not dense.
    """
    if output not in OUTPUT_CHOICES:
        raise unknown_name("output", output, OUTPUT_CHOICES)
    sizes, is_logits = tuple(shape[2:]), len(shape) == 2 and shape[1] >= 2
    is_map = len(shape) == 2 + len(seen_size)
    divides = is_map and not any(map(operator.mod, seen_size, sizes))
    if output == "auto":
        if is_map and (stride is not None or (divides and max(sizes) > 1)):
            output = "dense"
        else:
            output = "logits" if is_logits else "features"
    if output == "dense":
        if not is_map:
            axes = ", ".join(["size"] * len(seen_size))
            expected = f"(batch, channels, {axes}), since the output is said to be dense"
            raise wrong_shape("the output of the model", shape, expected)
        if stride is None and not divides:
            expected = f"sizes that divide {tuple(seen_size)}, those of the images; or give stride"
            raise wrong_shape("the output of the model", shape, expected)
        whole = tuple([seen // size for size, seen in zip(sizes, seen_size, strict=True)])
        return OutputKind("dense", check_stride(stride, len(sizes)) or whole)
    if stride is not None:
        raise wrong_value("stride", stride, f"None, since an output of shape {tuple(shape)} is not a dense one")
    if output == "logits" and not is_logits:
        raise wrong_shape("the output of the model", shape, "(batch, classes) with two or more classes, of logits")
    return OutputKind(output)


def check_stride(stride: int | Sequence[int] | None, num_axes: int) -> tuple[int, ...] | None:
    """The stride with one number for every axis, or None.

    Raises:
        ValueError: Not whole numbers of at least 1, or not one for each axis.
    """
    if stride is None:
        return None
    strides = tuple(stride) if isinstance(stride, Sequence) else (stride,) * num_axes
    if len(strides) != num_axes or any(isinstance(one, bool) or not isinstance(one, int) or one < 1 for one in strides):
        raise wrong_value("stride", stride, f"a whole number of at least 1, or one for each of {num_axes} axes")
    return strides


def check_dense_shifts(
    shifts: Iterable[Sequence[int | float]],
    size: Sequence[int],
    stride: Sequence[int],
    seen_size: Sequence[int],
    movement: Movement,
) -> None:
    """Check that maps of some size and stride, of images of the size seen, have an exact counterpart at every shift.

    A shift by s pixels moves a map of stride r by s / r cells, which must be a whole number. In mode `fourier` the map
    is moved by the same interpolation and any shift will do; in mode `bilinear`, on axes of stride 1.

    Raises:
        ValueError: A shift by no whole number of cells, or one that leaves no cell to compare; or a circular mode, and
            maps that do not cover the images.
    """
    mode = movement.mode
    sides = list(zip(size, stride, strict=True))
    if movement.wraps and list(map(operator.mul, size, stride)) != list(seen_size):
        expected = f"{tuple(seen_size)} over {tuple(size)}, images over maps, since mode {mode!r} has circular edges"
        raise wrong_value("stride", tuple(stride), expected)
    for shift in shifts:
        for (cells, pixels), step in zip(sides, shift, strict=True):
            between = step % pixels != 0 and mode != "fourier" and not (mode == "bilinear" and pixels == 1)
            if between:
                expected = f"whole multiples of the stride {tuple(stride)} of the model's dense output in mode {mode!r}"
                raise wrong_value("shifts", f"a set with {tuple(shift)}", expected)
            if not movement.wraps and abs(step) >= cells * pixels:
                expected = f"shifts that leave some of the model's {tuple(size)} cells in sight"
                raise wrong_value("shifts", f"a set with {tuple(shift)}", expected)


def dense_error(
    response: Float[Tensor, "batch channels *cells"],
    reference: Float[Tensor, "batch channels *cells"],
    shift: Sequence[int | float],
    stride: Sequence[int],
    movement: Movement,
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """‖f(T_s x) − T_s f(x)‖² and ‖T_s f(x)‖² of each image, at a shift that `check_dense_shifts` has passed.

    With circular edges all cells count; in the other modes those whose content came from inside the map.
    """
    steps = tuple([step / pixels for step, pixels in zip(shift, stride, strict=True)])
    if not movement.wraps:
        # The window of a moved map that shows what was in the map before; of the map before it, that of −s.
        ahead, behind = (
            tuple([slice(step, None) if step >= 0 else slice(None, step) for step in whole])
            for whole in ([int(step) for step in steps], [-int(step) for step in steps])
        )
        response, reference = response[(..., *ahead)], reference[(..., *behind)]
    elif all(map(float.is_integer, steps)):
        reference = torch.roll(reference, [int(step) for step in steps], dims=tuple(range(2, reference.ndim)))
    else:
        reference = movement.move(reference, steps)
    return sum_of_squares(response, reference), sum_of_squares(reference)


def sum_of_squares(values: Tensor, subtracted: Tensor | None = None) -> Float[Tensor, " batch"]:
    """‖values − subtracted‖² of each entry of a batch (B, C, …).

    Within a channel the squares are summed in the dtype of the values, at least float32, for which torch adds halves to
    halves; over channels in float64 (float32 on devices that lack it). All in float64 takes four times as long.
    """
    # Half-precision squares overflow soon.
    exact = torch.promote_types(values.dtype, torch.float32)
    squares = values.to(exact).square() if subtracted is None else (values.to(exact) - subtracted.to(exact)).square_()
    within = squares.flatten(2).sum(dim=2) if squares.ndim > 2 else squares
    return within.sum(dim=1, dtype=sum_dtype(values.device))


def sum_dtype(device: torch.device) -> torch.dtype:
    """The dtype in which numbers of many parts are summed: float64, or float32 on devices that lack it."""
    return torch.float32 if device.type == "mps" else torch.float64
