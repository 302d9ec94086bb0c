"""Functions that check arguments: tensors, modules, sizes, numbers, flags, names and paths.

Each check raises a ValueError with a clear message. Only `check_nonnegative` reads the elements of
a tensor.
"""

import contextlib
import itertools
import math
import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from teka.errors import (
    first_line_of_error,
    unknown_name_error,
    wrong_argument,
    wrong_shape,
    wrong_type,
    wrong_value,
)
from teka.execution_mode import can_read_elements
from teka.memory import MAX_IMAGE_PIXELS

MAX_NUM_BLOCKS = 10_000  # in a model
MAX_FILE_NAME_BYTES = 255
MAX_NUM_VALUES = 1_000_000  # in a list that is passed as an argument
MAX_SIZE = 2**31 - 1  # PyTorch's own error for a larger size would not name the argument
UNSUPPORTED_DTYPES = (torch.complex32, torch.float8_e4m3fn, torch.float8_e5m2)
POSITIVE_NUMBER = "a positive finite number that fits in float32"
Dtypes = tuple[torch.dtype, ...] | None  # the allowed dtypes, or None for all of them
FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
BOOL_DTYPES = (torch.bool,)
MASK_DTYPES = (*BOOL_DTYPES, *FLOAT_DTYPES)  # PyTorch accepts masks of these dtypes
INTEGER_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
COORDINATE_DTYPES = (*FLOAT_DTYPES, *INTEGER_DTYPES)
_DTYPE_DESCRIPTIONS = {
    FLOAT_DTYPES: "a floating-point dtype",
    COORDINATE_DTYPES: "a floating or an integer dtype",
    BOOL_DTYPES: "dtype torch.bool",
    MASK_DTYPES: "dtype torch.bool or a floating-point dtype",
    INTEGER_DTYPES: "an integer dtype",
    None: "any dtype",
}


def check_dtype(argument: str, tensor: object, dtypes: Dtypes = FLOAT_DTYPES) -> None:
    """Check that an argument is a tensor with one of the allowed dtypes.

    Args:
        argument: Name of the argument, for the error message.
        tensor: Value of the argument.
        dtypes: Allowed dtypes, such as `FLOAT_DTYPES` or `INTEGER_DTYPES`. None allows any dtype.

    Raises:
        ValueError: `tensor` is not a tensor, is a nested tensor or has another dtype.
    """
    if not isinstance(tensor, Tensor):
        raise wrong_type(argument, tensor, f"a tensor of {_DTYPE_DESCRIPTIONS[dtypes]}")
    if tensor.is_nested:
        hint = "Use torch.nested.to_padded_tensor(tensor, 0.0)."
        raise wrong_argument(argument, "a nested tensor", "a padded tensor and a mask", hint)
    if dtypes is not None and tensor.dtype not in dtypes:
        raise wrong_value(argument, tensor.dtype, f"of {_DTYPE_DESCRIPTIONS[dtypes]}")


def check_tensor(
    argument: str, tensor: object, *sizes: str | int, dtypes: Dtypes = FLOAT_DTYPES
) -> None:
    """Check the shape and the dtype of a tensor.

    Args:
        argument: Name of the argument, for the error message.
        tensor: Value of the argument.
        sizes: Expected shape. A number is the expected size. A string names a dimension of any size
            except 0; only the dimension "batch" may have size 0.
        dtypes: Allowed dtypes, see `check_dtype`.

    Raises:
        ValueError: `tensor` has another shape or dtype.
    """
    check_dtype(argument, tensor, dtypes)
    assert isinstance(tensor, Tensor)
    if tensor.ndim == len(sizes) and all(map(_matches_size, tensor.shape, sizes)):
        return
    expected = f"({', '.join(map(str, sizes))}{',' * (len(sizes) == 1)})"
    if 0 in tensor.shape:
        expected += ", where only batch may be 0" if "batch" in sizes else ", where no size is 0"
    raise wrong_shape(argument, tensor.shape, expected)


def _matches_size(actual: int, expected: str | int) -> bool:
    if isinstance(expected, str):
        return actual != 0 or expected == "batch"
    return actual == expected


def check_nonnegative(argument: str, tensor: Tensor) -> None:
    """Check that no element of a tensor is negative.

    The check is skipped if `should_check_elements` returns False.
    """
    if not should_check_elements(tensor):
        return
    smallest = tensor.min().item()
    if smallest < 0:
        raise wrong_value(f"the smallest element of {argument}", smallest, "at least 0")


def should_check_elements(tensor: Tensor) -> bool:
    """Return True if the elements of a tensor should be checked.

    This is False if a check is impossible or slow, for example on a GPU. It is also False for
    results of operations that autograd has recorded.
    """
    return can_read_elements(tensor) and tensor.is_cpu and tensor.grad_fn is None


def is_number(number: object) -> TypeGuard[float]:
    """Return True for a real number that is finite in float32.

    Booleans and tensors do not count as numbers.
    """
    if not isinstance(number, Real) or isinstance(number, bool):
        return False
    magnitude: Any = abs(number)
    return bool(magnitude <= torch.finfo(torch.float32).max)


def is_positive(number: object) -> TypeGuard[float]:
    """Return True for a number that is positive and finite in float32.

    Booleans and tensors do not count as numbers. Neither do positive numbers below the smallest
    normal float32.
    """
    return is_number(number) and bool(number >= torch.finfo(torch.float32).tiny)


def is_integer(number: object) -> TypeGuard[int]:
    """Return True for an integer, which may be symbolic.

    Booleans and tensors do not count as integers.
    """
    return isinstance(number, (Integral, torch.SymInt)) and not isinstance(number, bool)


def check_sizes(
    sizes: Mapping[str, object], least: int = 1, most: int = MAX_SIZE, *, or_none: bool = False
) -> None:
    """Check that every argument is an integer from `least` to `most`.

    Args:
        sizes: Values of the arguments by their names.
        least: Smallest allowed value.
        most: Largest allowed value.
        or_none: Allow None too.

    Raises:
        ValueError: An argument is not an integer, or is out of range.
    """
    for argument, size in sizes.items():
        if or_none and size is None:
            continue
        # The caller of torch.export sets the upper bound of a symbolic size.
        if is_integer(size) and least <= size and (isinstance(size, torch.SymInt) or size <= most):
            continue
        too_small = is_integer(size) and size < least
        expected = f"at least {least}" if too_small else f"a whole number up to {most}"
        raise wrong_value(argument, size, expected)


def check_tensor_sizes(sizes: Mapping[str, Any], num_elements: int | None = None) -> None:
    """Check the sizes of a tensor: positive integers, with at most 2^31 − 1 elements in total.

    Args:
        sizes: Values of the arguments by their names.
        num_elements: Number of elements of the tensor, by default the product of the sizes.

    Raises:
        ValueError: A size is not a positive integer, or the tensor would be too large.
    """
    check_sizes(sizes)
    if num_elements is None:
        num_elements = math.prod(sizes.values())
    if num_elements > MAX_SIZE:
        expected = f"sizes of a tensor of at most {MAX_SIZE:,} elements"
        raise wrong_value(", ".join(sizes), tuple(sizes.values()), expected)


def check_image_size(
    argument: str, size: int | Sequence[int] | None, *, smallest: int = 1
) -> tuple[int, int]:
    """Check the size of an image, and return it as (height, width) in pixels.

    A single integer is the side of a square image.

    Raises:
        ValueError: A side is below `smallest`, or there are more than `MAX_IMAGE_PIXELS` pixels.
    """
    expected = f"an integer or (height, width), each at least {smallest} pixels"
    height, width = as_integer_tuple(argument, size, 2, smallest, expected)
    if height * width > MAX_IMAGE_PIXELS:
        raise wrong_value(argument, size, f"at most {MAX_IMAGE_PIXELS:,} pixels")
    return int(height), int(width)


def check_stride(
    stride: int | Sequence[int], num_axes: int, argument: str = "stride"
) -> tuple[int, ...]:
    """Check a stride, and return it as a tuple with one integer for each axis.

    A single integer is the stride of all axes.

    Raises:
        ValueError: An integer is below 1, or `stride` does not have one integer for each axis.
    """
    expected = f"a whole number of at least 1, or one for each of {num_axes} axes"
    return as_integer_tuple(argument, stride, num_axes, 1, expected)


def as_integer_tuple(
    argument: str, value: object, count: int, least: int, expected: str
) -> tuple[int, ...]:
    """Convert one integer, or a sequence of `count` integers, to a tuple of `count` integers.

    One integer is repeated `count` times.

    Args:
        argument: Name of the argument, for the error message.
        value: Value of the argument.
        count: Number of integers.
        least: Smallest allowed integer.
        expected: Description of the allowed values, for the error message.

    Raises:
        ValueError: `value` is something else, or an integer is below `least`.
    """
    numbers: tuple[Any, ...] = (value,) * count
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        numbers = tuple(value)
    if len(numbers) != count or not all(is_integer(item) and item >= least for item in numbers):
        raise wrong_value(argument, value, expected)
    return numbers


def check_flags(flags: Mapping[str, object]) -> None:
    """Check that every argument is True or False.

    `flags` maps the name of each argument to its value.
    """
    for argument, flag in flags.items():
        if not isinstance(flag, bool):
            raise wrong_value(argument, flag, "True or False")


def check_name(argument: str, name: object, known: Collection[str]) -> None:
    """Check that a string is one of the known names."""
    if not isinstance(name, str) or name not in known:
        raise unknown_name_error(argument, name, known)


def check_number(
    argument: str,
    number: object,
    expected: str,
    *,
    low: float | int = -sys.float_info.max,
    high: float | int = sys.float_info.max,
    exclude: Collection[float | int] = (),
) -> None:
    """Check that an argument is a real number in the range from `low` to `high`.

    The number may be a Python or a NumPy number. Booleans, strings, tensors and NaN are errors.

    Args:
        argument: Name of the argument, for the error message.
        number: Value of the argument.
        expected: Description of the allowed numbers, for the error message.
        low: Smallest allowed number.
        high: Largest allowed number.
        exclude: Numbers within the range that are not allowed.

    Raises:
        ValueError: `number` is not a number, is out of range or is excluded.
    """
    if isinstance(number, Real) and not isinstance(number, bool):
        with contextlib.suppress(OverflowError):  # an integer too large for a float
            if low <= float(number) <= high and float(number) not in exclude:
                return
    raise wrong_value(argument, number, expected)


def check_device(device: object) -> torch.device:
    """Check that PyTorch can compute on a device, and return it as a `torch.device`."""
    try:
        torch_device = torch.device(device)  # pyright: ignore[reportArgumentType, reportCallIssue]
        torch.empty(0, device=torch_device)
    except Exception as error:  # its kind depends on the device
        expected = f"a device of this machine ({first_line_of_error(error)})"
        raise wrong_value("device", device, expected) from error
    if torch_device.type == "meta":
        raise wrong_value("device", device, "a device that computes")
    return torch_device


def check_dense_tensor(
    argument: str, tensor: object, *sizes: str | int, dtypes: Dtypes = FLOAT_DTYPES
) -> None:
    """Check that an argument is a dense tensor with a dtype that teka supports.

    Nested, sparse and quantized tensors, tensors on the "meta" device and dtypes such as float8 are
    not supported. If `sizes` are passed, the shape and dtype are checked too, as in `check_tensor`.
    """
    if not isinstance(tensor, Tensor):
        raise wrong_type(argument, tensor, "a tensor")
    if tensor.is_nested or tensor.layout != torch.strided:
        raise wrong_value(f"{argument}.layout", tensor.layout, "torch.strided, a dense tensor")
    if tensor.is_quantized or tensor.dtype in UNSUPPORTED_DTYPES:
        expected = "a common dtype such as torch.float32"
        raise wrong_value(f"{argument}.dtype", tensor.dtype, expected)
    if tensor.is_meta:
        raise wrong_value(f"{argument}.device", tensor.device, "a device that stores elements")
    if sizes:
        check_tensor(argument, tensor, *sizes, dtypes=dtypes)


def check_iterable(argument: str, values: object, expected: str) -> list[Any]:
    """Check that an argument is an iterable, and return its values as a list.

    Raises:
        ValueError: `values` is not iterable, is a string, mapping or set, or has more than
            `MAX_NUM_VALUES` values.
    """
    if isinstance(values, (str, bytes, Mapping, Set)) or not isinstance(values, Iterable):
        raise wrong_value(argument, values, expected)
    try:
        items = list(itertools.islice(values, MAX_NUM_VALUES + 1))
    except TypeError as error:  # a tensor or an array without dimensions
        raise wrong_value(argument, values, expected) from error
    if len(items) > MAX_NUM_VALUES:
        raise wrong_argument(argument, f"more than {MAX_NUM_VALUES:,} values", expected)
    return items


def check_callable(argument: str, function: object) -> None:
    """Check that an argument can be called."""
    if not callable(function):
        raise wrong_type(argument, function, "a function or a module")


def check_module(argument: str, module: object) -> None:
    """Check that an argument is a `torch.nn.Module`."""
    if not isinstance(module, nn.Module):
        raise wrong_type(argument, module, "a torch.nn.Module")


def unwrap_compiled(function: object) -> object:
    """Return the original of a module that `torch.compile` has wrapped.

    Any other module or function is returned unchanged.
    """
    return getattr(function, "_orig_mod", function)


def find_owning_module(function: object) -> nn.Module | None:
    """Return the module to which a method belongs, or None for other functions.

    If `function` is itself a module, return this module without a wrapper of `torch.compile`.
    """
    module = unwrap_compiled(getattr(function, "__self__", function))
    return module if isinstance(module, nn.Module) else None


def check_evaluation_mode(argument: str, function: object) -> None:
    """Check that an argument can be called, and that its module is in evaluation mode.

    The module is the argument itself, or the owner of a method. Other functions have no module.

    Args:
        argument: Name of the argument, for the error message.
        function: Value of the argument.

    Raises:
        ValueError: The argument cannot be called, or the module or a submodule is in training mode.
    """
    check_callable(argument, function)
    module = find_owning_module(function)
    for name, part in () if module is None else module.named_modules():
        if part.training:
            place = f", whose part {name!r} is" if name else ""
            actual = f"a {type(module).__name__}{place} in training mode"
            raise wrong_argument(argument, actual, "in evaluation mode", "Call .eval().")


def check_instance(argument: str, value: object, kind: type) -> None:
    """Check that an argument is an instance of a class."""
    if not isinstance(value, kind):
        raise wrong_type(argument, value, f"a {kind.__module__.partition('.')[0]}.{kind.__name__}")


def check_instances(argument: str, values: object, kind: type, expected: str) -> list[Any]:
    """Check that an argument is an iterable of instances of a class, and return it as a list."""
    items = check_iterable(argument, values, expected)
    for item in items:
        check_instance(argument, item, kind)
    return items


def check_path(argument: str, path: object) -> Path:
    """Check that an argument is a valid path, and return it as a `Path`."""
    if not isinstance(path, (str, os.PathLike)) or not str(path) or "\0" in str(path):
        raise wrong_value(argument, path, "a path")
    if any(len(os.fsencode(part)) > MAX_FILE_NAME_BYTES for part in Path(path).parts):
        expected = f"a path whose parts have at most {MAX_FILE_NAME_BYTES} bytes"
        raise wrong_value(argument, path, expected)
    return Path(path)


def check_names(argument: str, names: object, known: Collection[str] | None = None) -> list[str]:
    """Check that an argument is an iterable of strings, and return it as a list.

    Raises:
        ValueError: `names` is something else, or has a name that is not in `known`.
    """
    items = check_iterable(argument, names, "a list of names")
    for name in items:
        if known is not None:
            check_name(argument, name, known)
        elif not isinstance(name, str):
            raise wrong_value(argument, name, "a list of names")
    return items
