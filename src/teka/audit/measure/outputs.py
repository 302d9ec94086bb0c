"""What a model under audit gives: the checked call, the kinds of output, and the stride of dense ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from teka.audit.measure.responses import OUTPUTS
from teka.errors import FOREIGN, is_out_of_memory, unknown_name, wrong_shape, wrong_value

if TYPE_CHECKING:
    from teka.audit.measure.responses import Responses

OUTPUT_CHOICES = ("auto", *OUTPUTS)


class ModelError(ValueError):
    """A model under audit raised, or gave an output that cannot be measured.

    Args:
        message: What happened, and at which shift and images.

    Attributes:
        responses: What was measured before it happened, or None.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.responses: Responses | None = None


@dataclass(frozen=True)
class OutputKind:
    """What a model's output is.

    Args:
        name: "logits", "features" or "dense".
        stride: Pixels for one cell of a dense output along every axis; None of the others.
    """

    name: str
    stride: tuple[int, ...] | None = None


def call_model(function: Callable[[Tensor], object], batch: Tensor, where: Callable[[], str]) -> Tensor:
    """The output of a model in inference mode, taken out of an object with `.logits`.

    Args:
        function: The model.
        batch: Images (B, C, *S).
        where: Says which shifts and images the batch holds.

    Returns:
        A real floating-point tensor (B, …).

    Raises:
        ModelError: The model raised, or gave anything else.
    """
    try:
        with torch.inference_mode():
            result = function(batch)
    except FOREIGN as error:
        hint = "; a smaller batch_size needs less memory" if is_out_of_memory(error) else ""
        raise ModelError(f"the model raised {type(error).__name__} {where()}: {error}{hint}") from error
    output = result if isinstance(result, Tensor) else getattr(result, "logits", None)
    if not isinstance(output, Tensor):
        raise ModelError(
            f"the output of the model is a {type(result).__name__} {where()}, expected a tensor or an object with one "
            "as .logits"
        )
    if not output.is_floating_point():
        raise ModelError(f"the output of the model is of {output.dtype} {where()}, expected real floating-point values")
    if output.ndim < 2 or len(output) != len(batch) or output.numel() == 0:
        raise ModelError(
            f"the output of the model has shape {tuple(output.shape)} {where()}, expected ({len(batch)}, …), one "
            "entry for each image"
        )
    return output


def infer_output(
    shape: Sequence[int], seen_size: Sequence[int], output: str = "auto", stride: int | Sequence[int] | None = None
) -> OutputKind:
    """The kind of an output of some shape.

    For "auto", (B, K) with K ≥ 2 is logits; (B, C', *S') with as many spatial axes as the images is dense if its sizes
    divide those of the images and are not all 1, or if a stride is given; all else is features.

    Args:
        shape: Shape of the output, the batch first.
        seen_size: Spatial sizes of the images that the model gets.
        output: "auto", or the kind.
        stride: Pixels for one cell of a dense output, one number or one for each axis. None divides the sizes.

    Raises:
        ValueError: An unknown kind, a shape that is not of this kind, sizes that no stride explains, or a stride for
            what is not dense.
    """
    if output not in OUTPUT_CHOICES:
        raise unknown_name("output", output, OUTPUT_CHOICES)
    sizes, is_logits = tuple(shape[2:]), len(shape) == 2 and shape[1] >= 2
    is_map = len(shape) == 2 + len(seen_size)
    divides = is_map and all(seen % size == 0 for size, seen in zip(sizes, seen_size, strict=True))
    if output == "auto":
        if is_map and (stride is not None or (divides and max(sizes) > 1)):
            output = "dense"
        else:
            output = "logits" if is_logits else "features"
    if output == "dense":
        if not is_map:
            expected = (
                f"(batch, channels, {', '.join(['size'] * len(seen_size))}), since the output is said to be dense"
            )
            raise wrong_shape("the output of the model", shape, expected)
        if stride is None and not divides:
            expected = f"sizes that divide {tuple(seen_size)}, those of the images; or give stride"
            raise wrong_shape("the output of the model", shape, expected)
        whole = tuple(seen // size for size, seen in zip(sizes, seen_size, strict=True))
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
