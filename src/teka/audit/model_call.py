"""The function under audit: in evaluation mode, called, what it gives checked and compared, and its weights."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from teka.audit.model_output import SelectedOutput, Source, select_output
from teka.errors import EXTERNAL_ERRORS, error_message, is_out_of_memory, wrong_shape, wrong_value

_call_context: Callable[[], AbstractContextManager[None]] = nullcontext
Model = Callable[[Tensor], object]


class ModelError(ValueError):
    """A model under audit raised, or gave an output that cannot be measured; `responses` are those before it.

    >>> import torch
    >>> from teka.audit import ModelError, Movement, measure_responses
    >>> try:
    ...     measure_responses(lambda images: images.mean(), torch.rand(2, 1, 2, 3), [(0, 0)], Movement("zero"))
    ... except ModelError as error:
    ...     print(error)
    the output of the model at shift (0, 0), images 0 to 1 has shape (), expected (2, …), one entry for each image
    """

    responses: Any = None


def as_written(function: object) -> object:
    """What torch.compile made a function from; else itself."""
    return getattr(function, "_orig_mod", function)


def module_of(function: object) -> nn.Module | None:
    """The module that a function is, is a method of, or was compiled from; None if it is none."""
    module = function if isinstance(function, nn.Module) else getattr(function, "__self__", None)
    module = as_written(module)
    return module if isinstance(module, nn.Module) else None


def check_evaluation_mode(argument: str, function: object) -> None:
    """Check that no part of the module that a function is, or is a method of, is in training mode."""
    module = module_of(function)
    for name, part in () if module is None else module.named_modules():
        if part.training:
            kind, place = type(module).__name__, f"its part {name!r}" if name else "it"
            came = f"{argument} is a {kind} and {place} is in training mode"
            raise ValueError(f"{came}, expected evaluation: call .eval()")


@contextmanager
def evaluating(module: nn.Module | None) -> Iterator[None]:
    """A context in which all parts of a module are in evaluation mode; afterwards each is as it was."""
    training = [] if module is None else [part for part in module.modules() if part.training]
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True


def observe_calls(context: Callable[[], AbstractContextManager[None]]) -> None:
    """Set what makes the context in which code of a model runs from now on, say to limit its time."""
    global _call_context
    _call_context = context


def calling() -> AbstractContextManager[None]:
    """Return a context for code of a model."""
    return _call_context()


def call_model(function: Model, batch: Tensor, where: Callable[[], str]) -> SelectedOutput:
    """Return the output of a model in inference mode, (B, …), by the tables of `teka.audit.model_output`."""
    try:
        with calling(), torch.inference_mode():
            result = function(batch)
    except EXTERNAL_ERRORS as error:
        hint = "; a smaller batch_size needs less memory" if is_out_of_memory(error) else ""
        raise ModelError(
            f"the model raised {type(error).__name__} {where()}: {error_message(error)}{hint}"
        ) from error
    try:
        return output_of(function, batch, result)
    except EXTERNAL_ERRORS as error:
        is_said = isinstance(error, ValueError)
        said = (
            error_message(error)
            if is_said
            else f"cannot be read: {type(error).__name__}: {error_message(error)}"
        )
        raise ModelError(f"the output of the model {where()} {said}") from error


def output_of(function: Model, batch: Tensor, result: object) -> SelectedOutput:
    """Return what is measured of the result of a call, (B, …); a ValueError says what the result is instead."""
    output = select_output(result, Source(batch, module_of(function)))
    shape = tuple(output.values.shape)
    # The shape that came, and not that with another axis, is what the user knows.
    came = tuple(result.shape) if isinstance(result, Tensor) else shape
    if not shape or shape[0] != len(batch) or 0 in shape:
        raise ValueError(f"has shape {came}, expected ({len(batch)}, …), one entry for each image")
    return output


def evaluate(function: Model, batch: Tensor, expected_shape: Sequence[int] | None = None) -> Tensor:
    """The function's output for a batch as a new float64 tensor on the CPU, checked as comparing it needs."""
    try:
        result = function(batch)
    except ModelError:
        raise
    except EXTERNAL_ERRORS as error:
        raise ModelError(
            f"function raised {type(error).__name__}: {error_message(error)}"
        ) from error
    if not isinstance(result, Tensor):
        raise wrong_value("the output of function", type(result).__name__, "a tensor")
    if not result.is_floating_point():
        raise wrong_value(
            "the dtype of function's output", result.dtype, "a real floating-point dtype"
        )
    if result.ndim == 0 or result.shape[0] != batch.shape[0]:
        raise wrong_shape(
            "the output of function",
            result.shape,
            f"({batch.shape[0]}, …), one entry for each input",
        )
    if expected_shape is not None and tuple(result.shape) != tuple(expected_shape):
        expected = f"{tuple(expected_shape)}, as for the unshifted input"
        raise wrong_shape("the output of function", result.shape, expected)
    if not result.isfinite().all():
        raise ValueError("the output of function holds NaN or infinity, expected finite values")
    # A copy, because the function may use one buffer for all its outputs.
    return result.cpu().to(torch.float64, copy=True)


def evaluate_model(
    function: Model, batch: Tensor, where: str, expected_shape: Sequence[int] | None = None
) -> Tensor:
    """What `evaluate` gives of a model that is called by `call_model`; classes are counted from 1."""

    def answer(given: Tensor) -> Tensor:
        values = call_model(function, given, lambda: where).values
        # Class 0 would have the norm zero, relative to which nothing can be compared.
        return values if values.is_floating_point() else values.double() + 1

    return evaluate(answer, batch, expected_shape)


def relative_difference(response: Tensor, reference: Tensor) -> float:
    """Return ‖response − reference‖ / ‖reference‖ over all entries."""
    largest = reference.abs().max()
    if largest == 0:
        raise ValueError(
            "the output of function has norm zero where it is compared, expected a norm to divide by"
        )
    # Division by the largest entry keeps the squares finite.
    response, reference = response / largest, reference / largest
    return float(
        torch.linalg.vector_norm(response - reference) / torch.linalg.vector_norm(reference)
    )


def repeat_difference(second: Tensor, first: Tensor) -> float:
    """Return the relative difference of two outputs for the same images: 0 if they are equal, 1 if one is all zero."""
    if torch.equal(second, first):
        return 0.0
    return relative_difference(second, first) if first.any() else 1.0


def rounding_bound(epsilon: float) -> float:
    """Return the relative error up to which rounding alone explains a difference of two outputs.

    The machine epsilon is that of the outputs. Single precision has 1e-5, double precision about 2e-14, and half
    precision 4 roundings. How much two equal calls differ plays no role, because noise is not rounding.
    """
    return max(4 * epsilon, min(84 * epsilon, 1e-5))


def weights_hash(function: Callable[..., object]) -> str:
    """SHA-256 of the weights of a module or of the module that a method is of; a word for any other callable."""
    module = module_of(function)
    if module is None:
        return "unknown"
    digest = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        if is_lazy(tensor):
            raise ValueError(
                f"{name} of the model has no shape yet, expected a lazy module that has seen an image"
            )
        digest.update(
            f"{name} {tensor_hash(tensor) if isinstance(tensor, Tensor) else tensor!r}\n".encode()
        )
    return digest.hexdigest()


def tensor_hash(tensor: Tensor) -> str:
    """SHA-256 of a tensor's dtype, shape and values."""
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    if tensor.numel():
        content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(content.numpy())  # pyright: ignore[reportArgumentType]
    return digest.hexdigest()
