"""Checks of arguments where they enter, with the messages of `teka.errors`: tensors, sizes, numbers, flags, names.

None of them reads the numbers of a tensor but `check_nonnegative`, which does so where that takes no waiting.
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
    first_line,
    unknown_name,
    wrong_argument,
    wrong_shape,
    wrong_type,
    wrong_value,
)
from teka.execution_mode import is_readable
from teka.memory import MAX_IMAGE_PIXELS

PRECISIONS = ("float32", "bfloat16", "float16")  # of products, in training and benchmarks
MAX_NUM_BLOCKS = 10_000  # of a model
MAX_FILE_NAME_BYTES = 255  # bytes of a file's name
MAX_NUM_VALUES = 1_000_000  # of a list that is an argument
MAX_SIZE = 2**31 - 1  # a larger size is a mistake, of which torch's error would not say whose
UNSUPPORTED_DTYPES = (torch.complex32, torch.float8_e4m3fn, torch.float8_e5m2)
POSITIVE_NUMBER = "a positive finite number of float32's range"
Dtypes = tuple[torch.dtype, ...] | None  # of one kind, None for any
FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
BOOL_DTYPES = (torch.bool,)
MASK_DTYPES = (*BOOL_DTYPES, *FLOAT_DTYPES)  # of a mask as torch takes it
INTEGER_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_DTYPE_DESCRIPTIONS = {
    FLOAT_DTYPES: "a floating dtype",
    BOOL_DTYPES: "dtype torch.bool",
    MASK_DTYPES: "dtype torch.bool or a floating dtype",
    INTEGER_DTYPES: "a dtype of whole numbers",
    None: "any dtype",
}


def check_dtype(argument: str, tensor: object, dtypes: Dtypes = FLOAT_DTYPES) -> None:
    """Check that an argument is a tensor of a kind of dtype: `FLOAT_DTYPES`, `BOOL_DTYPES` or `INTEGER_DTYPES`, or None for any."""
    if not isinstance(tensor, Tensor):
        raise wrong_type(argument, tensor, f"a tensor of {_DTYPE_DESCRIPTIONS[dtypes]}")
    if tensor.is_nested:
        hint = "a padded one, with the lengths in a mask (or in `lengths`)"
        raise wrong_argument(
            argument, "a nested tensor", f"{hint}; use torch.nested.to_padded_tensor(tensor, 0.0)"
        )
    if dtypes is not None and tensor.dtype not in dtypes:
        raise wrong_value(argument, tensor.dtype, f"of {_DTYPE_DESCRIPTIONS[dtypes]}")


def check_tensor(
    argument: str, tensor: object, *sizes: str | int, dtypes: Dtypes = FLOAT_DTYPES
) -> None:
    """Check that an argument is a tensor of a kind of dtype (`check_dtype`) and of a shape.

    Of every size either it or, where it may be any, its name is given; of the named ones only "batch" may be 0.
    """
    check_dtype(argument, tensor, dtypes)
    assert isinstance(tensor, Tensor)
    if tensor.ndim != len(sizes) or not all(map(_fits, tensor.shape, sizes)):
        most = "only batch" if "batch" in sizes else "none"
        rest = f", of which {most} may be 0" if 0 in tensor.shape else ""
        raise wrong_shape(
            argument, tensor.shape, f"({', '.join(map(str, sizes))}{',' * (len(sizes) == 1)}){rest}"
        )


def _fits(came: int, size: str | int) -> bool:
    return came == size if not isinstance(size, str) else came != 0 or size == "batch"


def check_nonnegative(argument: str, tensor: Tensor) -> None:
    """Check that no number of a tensor is negative, where there are any and looking keeps nothing waiting."""
    if not can_check_elements(tensor):
        return
    least = tensor.min().item()
    if least < 0:
        raise wrong_value(f"the smallest element of {argument}", least, "at least 0")


def can_check_elements(tensor: Tensor) -> bool:
    """Return True if the elements of a parameter can be checked: they exist, on the CPU, and are nobody's output."""
    return is_readable(tensor) and tensor.is_cpu and tensor.grad_fn is None


def is_number(number: object) -> TypeGuard[float]:
    """Whether this is a number that is finite in float32; a truth value or a tensor is none."""
    if not isinstance(number, Real) or isinstance(number, bool):
        return False
    size: Any = abs(number)
    return bool(size <= torch.finfo(torch.float32).max)


def is_positive(number: object) -> TypeGuard[float]:
    """Whether this is a number that is positive and finite in float32, `POSITIVE_NUMBER` in a message."""
    return is_number(number) and bool(number >= torch.finfo(torch.float32).tiny)


def is_integer(number: object) -> TypeGuard[int]:
    """Whether this is a whole number, known or not yet; a truth value or a tensor is none."""
    return isinstance(number, (Integral, torch.SymInt)) and not isinstance(number, bool)


def check_sizes(
    sizes: Mapping[str, object], least: int = 1, most: int = MAX_SIZE, *, or_none: bool = False
) -> None:
    """Check that arguments, by their names, are whole numbers from `least` to `most`, or None where that is allowed."""
    for argument, size in sizes.items():
        if or_none and size is None:
            continue
        # A size that may change in an exported graph has the largest value that the caller of torch.export sets.
        if is_integer(size) and least <= size and (isinstance(size, torch.SymInt) or size <= most):
            continue
        too_small = is_integer(size) and size < least
        raise wrong_value(
            argument, size, f"at least {least}" if too_small else f"a whole number up to {most}"
        )


def check_tensor_sizes(sizes: Mapping[str, Any], num_elements: int | None = None) -> None:
    """Check that arguments, by their names, are sizes from 1 of a tensor that is not larger than 2^31 − 1 elements.

    The number of elements is the product of the sizes, unless it is given.
    """
    check_sizes(sizes)
    if (math.prod(sizes.values()) if num_elements is None else num_elements) > MAX_SIZE:
        expected = f"sizes of a tensor of at most {MAX_SIZE:,} elements"
        raise wrong_value(", ".join(sizes), tuple(sizes.values()), expected)


def check_image_size(
    argument: str, size: int | Sequence[int], *, smallest: int = 1
) -> tuple[int, int]:
    """An image size as (height, width) in pixels; one whole number is a square."""
    sides: tuple[Any, ...] = (size, size)
    if isinstance(size, Sequence):
        sides = tuple(size) if len(size) == 2 else ()
    if len(sides) != 2 or not all(is_integer(side) and side >= smallest for side in sides):
        raise wrong_value(
            argument, size, f"one whole number or (height, width), each at least {smallest} pixels"
        )
    if sides[0] * sides[1] > MAX_IMAGE_PIXELS:
        raise wrong_value(argument, size, f"at most {MAX_IMAGE_PIXELS:,} pixels")
    return int(sides[0]), int(sides[1])


def check_stride(
    stride: int | Sequence[int], num_axes: int, argument: str = "stride"
) -> tuple[int, ...]:
    """A stride with one whole number of at least 1 for each axis; one number is that of all."""
    steps: tuple[Any, ...] = (stride,) * num_axes
    if isinstance(stride, Sequence):
        steps = tuple(stride) if len(stride) == num_axes else ()
    if len(steps) != num_axes or not all(is_integer(step) and step >= 1 for step in steps):
        raise wrong_value(
            argument, stride, f"a whole number of at least 1, or one for each of {num_axes} axes"
        )
    return steps


def check_flags(flags: Mapping[str, object]) -> None:
    """Check that arguments, by their names, are True or False."""
    for argument, flag in flags.items():
        if not isinstance(flag, bool):
            raise wrong_value(argument, flag, "True or False")


def check_name(argument: str, name: object, known: Collection[str]) -> None:
    """Check that an argument is one of the known names."""
    if not isinstance(name, str) or name not in known:
        raise unknown_name(argument, name, known)


def check_number(
    argument: str,
    number: object,
    expected: str,
    *,
    low: float | int = -sys.float_info.max,
    high: float | int = sys.float_info.max,
    exclude: Collection[float | int] = (),
) -> None:
    """Check that an argument is a real number from `low` to `high`, which `expected` describes in words.

    Python's and NumPy's numbers pass. Booleans, strings, tensors, NaN and the values in `exclude` do not.
    """
    if isinstance(number, Real) and not isinstance(number, bool):
        with contextlib.suppress(OverflowError):  # of a whole number that no float holds
            if low <= float(number) <= high and float(number) not in exclude:
                return
    raise wrong_value(argument, number, expected)


def check_device(argument: str, device: object) -> torch.device:
    """Return the device that an argument names, after a check that this machine can compute on it."""
    try:
        found = torch.device(device)  # pyright: ignore[reportArgumentType, reportCallIssue]
        torch.empty(0, device=found)
    except (
        RuntimeError,
        TypeError,
        ValueError,
        AssertionError,
        OverflowError,
        NotImplementedError,
    ) as error:
        raise wrong_value(
            argument, device, f"a device of this machine ({first_line(error)})"
        ) from error
    if found.type == "meta":
        raise wrong_value(argument, device, "a device that computes")
    return found


def check_dense(argument: str, tensor: object) -> None:
    """Check that an argument is a tensor whose elements can be read: dense, not nested or quantized, not on "meta"."""
    if not isinstance(tensor, Tensor):
        raise wrong_type(argument, tensor, "a tensor")
    if tensor.is_nested or tensor.layout != torch.strided:
        raise wrong_value(f"{argument}.layout", tensor.layout, "torch.strided, a dense tensor")
    if tensor.is_quantized or tensor.dtype in UNSUPPORTED_DTYPES:
        raise wrong_value(
            f"{argument}.dtype", tensor.dtype, "an ordinary dtype such as torch.float32"
        )
    if tensor.is_meta:
        raise wrong_value(f"{argument}.device", tensor.device, "a device that holds elements")


def check_sequence(argument: str, values: object, expected: str) -> list[Any]:
    """Return the values of an argument, which may be any iterable of at most a million but a string, mapping or set."""
    if isinstance(values, (str, bytes, Mapping, Set)) or not isinstance(values, Iterable):
        raise wrong_value(argument, values, expected)
    try:
        found = list(itertools.islice(values, MAX_NUM_VALUES + 1))
    except TypeError as error:  # of a tensor or an array without axes
        raise wrong_value(argument, values, expected) from error
    if len(found) > MAX_NUM_VALUES:
        raise wrong_argument(argument, f"more than {MAX_NUM_VALUES:,} values", expected)
    return found


def check_callable(argument: str, function: object) -> None:
    """Check that an argument can be called."""
    if not callable(function):
        raise wrong_type(argument, function, "a function or a module")


def check_module(argument: str, module: object) -> None:
    """Check that an argument is a module of torch."""
    if not isinstance(module, nn.Module):
        raise wrong_type(argument, module, "a torch.nn.Module")


def check_instance(argument: str, value: object, kind: type) -> None:
    """Check that an argument is an object of a class."""
    if not isinstance(value, kind):
        raise wrong_type(argument, value, f"a {kind.__module__.partition('.')[0]}.{kind.__name__}")


def check_path(argument: str, path: object) -> Path:
    """Return an argument as a path, after a check that a file system takes it."""
    if not isinstance(path, (str, os.PathLike)) or not str(path) or "\0" in str(path):
        raise wrong_value(argument, path, "a path")
    if any(len(os.fsencode(part)) > MAX_FILE_NAME_BYTES for part in Path(path).parts):
        raise wrong_value(
            argument, path, f"a path whose parts have at most {MAX_FILE_NAME_BYTES} bytes"
        )
    return Path(path)


def check_names(argument: str, names: object, known: Collection[str] | None = None) -> list[str]:
    """Return the values of an argument that is a list of names, after a check that each is a string, and known."""
    found = check_sequence(argument, names, "a list of names")
    for name in found:
        if known is not None:
            check_name(argument, name, known)
        elif not isinstance(name, str):
            raise wrong_value(argument, name, "a list of names")
    return found
