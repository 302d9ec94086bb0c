"""Functions that call a model, check and compare its outputs, and hash its weights."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from teka.audit.model_output import (
    OUTPUT_CHOICES,
    ModelError,
    OutputSource,
    SelectedOutput,
    select_output,
)
from teka.checks import find_owning_module
from teka.errors import EXTERNAL_ERRORS, error_message, is_out_of_memory, wrong_shape, wrong_value
from teka.precision import relative_difference

_model_code_context: Callable[[], AbstractContextManager[None]] = nullcontext
Model = Callable[[Tensor], object]


@contextmanager
def evaluation_mode(module: nn.Module | None) -> Iterator[None]:
    """Put a module into evaluation mode for the duration of a `with` block.

    The previous mode of each submodule is restored afterwards.
    """
    training = [] if module is None else [part for part in module.modules() if part.training]
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True


def set_model_code_context(context: Callable[[], AbstractContextManager[None]]) -> None:
    """Set a context manager in which a model is always called, for example to limit the time."""
    global _model_code_context
    _model_code_context = context


def model_code_context() -> AbstractContextManager[None]:
    """Return a context manager for calls of a model, which `set_model_code_context` has set."""
    return _model_code_context()


def call_model(function: Model, batch: Tensor, where: str) -> SelectedOutput:
    """Call a model in inference mode, and return the part of its output that an audit measures.

    Args:
        function: The model.
        batch: Images (B, C, *S).
        where: Description of the batch for error messages, such as "at shift (0, 1)".

    Returns:
        The tensor (B, …) that `teka.audit.model_output` selects, and its kind.

    Raises:
        ModelError: The model raised an exception or returned an unsupported output.
    """
    try:
        with model_code_context(), torch.inference_mode():
            result = function(batch)
    except ModelError:
        raise
    except EXTERNAL_ERRORS as error:
        hint = "; a smaller batch_size needs less memory" if is_out_of_memory(error) else ""
        raise ModelError(
            f"the model raised {type(error).__name__} {where}: {error_message(error)}{hint}"
        ) from error
    try:
        output = select_output(result, OutputSource(batch, find_owning_module(function)))
        shape = tuple(output.values.shape)
        if not shape or shape[0] != len(batch) or 0 in shape:
            # The user knows the original shape, without an axis that was added.
            shape = tuple(result.shape) if isinstance(result, Tensor) else shape
            expected = f"({len(batch)}, …), one entry for each image"
            raise ValueError(f"has shape {shape}, expected {expected}")
    except EXTERNAL_ERRORS as error:
        message = error_message(error)
        if not isinstance(error, ValueError):
            message = f"cannot be read: {type(error).__name__}: {message}"
        raise ModelError(f"the output of the model {where} {message}") from error
    return output if output.kind != "auto" else output._replace(kind=output_kind_of(function))


def output_kind_of(function: object) -> str:
    """Return the kind of output that a model declares in its attribute `output_kind`.

    If the attribute is missing or invalid, return "auto".
    """
    kind = getattr(function, "output_kind", "auto")
    return kind if isinstance(kind, str) and kind in OUTPUT_CHOICES else "auto"


def call_and_check(
    function: Model, batch: Tensor, expected_shape: Sequence[int] | None = None
) -> Tensor:
    """Call a function on a batch, check its output, and copy it to the CPU in float64.

    Args:
        function: The function.
        batch: Inputs (B, …).
        expected_shape: Shape that the output must have, or None for any shape.

    Raises:
        ModelError: The function raised an exception.
        ValueError: The output is not a finite real tensor (B, …) of the expected shape.
    """
    try:
        result = function(batch)
    except ModelError:
        raise
    except EXTERNAL_ERRORS as error:
        raise ModelError(
            f"function raised {type(error).__name__}: {error_message(error)}"
        ) from error
    argument = "the output of function"
    if not isinstance(result, Tensor):
        raise wrong_value(argument, type(result).__name__, "a tensor")
    if not result.is_floating_point():
        raise wrong_value(
            "the dtype of function's output", result.dtype, "a real floating-point dtype"
        )
    if result.ndim == 0 or len(result) != len(batch):
        expected = f"({len(batch)}, …), one entry for each input"
        raise wrong_shape(argument, result.shape, expected)
    if expected_shape is not None and tuple(result.shape) != tuple(expected_shape):
        expected = f"{tuple(expected_shape)}, as for the unshifted input"
        raise wrong_shape(argument, result.shape, expected)
    if not result.isfinite().all():
        raise ValueError("the output of function contains NaN or infinity, expected finite values")
    # A copy, because the function may use one buffer for all its outputs.
    return result.cpu().to(torch.float64, copy=True)


def evaluate_in_batches(function: Model, images: Tensor, where: str, batch_size: int) -> Tensor:
    """Call a model on images in batches, and return its outputs in float64 on the CPU.

    `teka.audit.model_output` selects a tensor from a structured output. If the model returns class
    indices, 1 is added to them, because the relative difference from class 0 would be undefined.

    Args:
        function: The model.
        images: Images (N, C, *S).
        where: Description of the images for error messages.
        batch_size: Number of images per call.
    """

    def select_values(batch: Tensor) -> Tensor:
        # Pass a copy, because the function may write into its input.
        values = call_model(function, batch.clone(), where).values
        return values if values.is_floating_point() else values.double() + 1

    batches = images.split(int(batch_size))
    return torch.cat([call_and_check(select_values, batch) for batch in batches])


def output_difference(output: Tensor, reference: Tensor) -> float:
    """Return the relative difference ‖output − reference‖ / ‖reference‖ of two outputs.

    If the reference is 0 everywhere, the result is 0 for equal outputs and 1 otherwise.

    Raises:
        ValueError: The shapes differ.
    """
    if output.shape != reference.shape:
        expected = f"{tuple(reference.shape)}, as in another call on the same images"
        raise wrong_shape("the output of function", output.shape, expected)
    if torch.equal(output, reference):
        return 0.0
    return relative_difference(output, reference) if reference.any() else 1.0


def weights_hash(function: Callable[..., object]) -> str:
    """Return the SHA-256 hash of a model's weights, or "unknown" if the model is not a module.

    Raises:
        ValueError: A lazy module has no weights yet.
    """
    module = find_owning_module(function)
    if module is None:
        return "unknown"
    digest = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        if is_lazy(tensor):
            expected = "a lazy module that was called with an image"
            raise ValueError(f"{name} of the model has no shape yet, expected {expected}")
        content = tensor_hash(tensor) if isinstance(tensor, Tensor) else repr(tensor)
        digest.update(f"{name} {content}\n".encode())
    return digest.hexdigest()


def tensor_hash(tensor: Tensor) -> str:
    """Return the SHA-256 hash of the dtype, shape and values of a tensor."""
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    if tensor.numel():
        content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(content.numpy())  # pyright: ignore[reportArgumentType]
    return digest.hexdigest()
