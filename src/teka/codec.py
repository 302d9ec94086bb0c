"""Encoding of dataclasses as JSON data, and decoding based on the types of their fields."""

import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from teka.errors import did_you_mean, wrong_value

T = TypeVar("T")
_get_field_types = cache(get_type_hints)


def encode(value: object) -> Any:
    """Convert a value, such as a dataclass, to JSON data.

    - Dataclasses become dictionaries, and tuples become lists.
    - Keys of dictionaries and paths become strings.
    - NumPy scalars and fractions become Python numbers.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Fraction):
        return float(value)
    return str(value) if isinstance(value, Path) else value


def decode(kind: type[T], content: object, argument: str | None = None) -> T:
    """Create an instance of the dataclass `kind` from JSON data, such as the output of `encode`.

    Args:
        kind: The dataclass. Fields that are missing in the data take their default values.
        content: The JSON data.
        argument: Name of the data in error messages, by default the name of the dataclass.

    Raises:
        ValueError: A field is missing, unknown or of the wrong type. The message names the field.
    """
    return decode_value(kind, content, argument or kind.__name__)


def decode_value(kind: Any, content: object, location: str) -> Any:
    """Convert JSON data to a value of the type `kind`.

    Args:
        kind: A dataclass, union, sequence, mapping with strings as keys, or basic type.
        content: The JSON data.
        location: Name of the data in error messages, such as "config.options[2]".
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _decode_fields(kind, content, location)
    if origin in (Union, types.UnionType):
        return _decode_union(arguments, content, location)
    if origin is Literal:
        if content not in arguments:
            raise wrong_value(location, content, f"one of {', '.join(map(repr, arguments))}")
        return content
    if origin in (tuple, list, Sequence):
        has_fixed_length = origin is tuple and arguments[-1] is not Ellipsis
        expected = f"a list of {len(arguments)}" if has_fixed_length else "a list"
        items = _check_type(content, Sequence, location, expected)
        item_types = arguments if has_fixed_length else arguments[:1] * len(items)
        if len(items) != len(item_types):
            raise wrong_value(location, content, expected)
        decoded = [
            decode_value(item_type, item, f"{location}[{index}]")
            for index, (item_type, item) in enumerate(zip(item_types, items, strict=True))
        ]
        return decoded if origin is list else tuple(decoded)
    if origin in (dict, Mapping):
        items = _check_type(content, Mapping, location, "a dictionary")
        return {
            str(key): decode_value(arguments[1], item, f"{location}.{key}")
            for key, item in items.items()
        }
    if kind in (Any, object):
        return content
    if kind is float and isinstance(content, int) and not isinstance(content, bool):
        if abs(content) > sys.float_info.max:
            raise wrong_value(location, content, f"a number up to {sys.float_info.max:.2g}")
        return float(content)
    if kind is Path and isinstance(content, str):
        return Path(content)
    return _check_type(content, origin or kind, location, _describe_type(kind))


def _decode_fields(kind: Any, content: object, location: str) -> Any:
    items = _check_type(content, Mapping, location, "a dictionary")
    known = {field.name: field for field in fields(kind) if field.init}
    unknown = [key for key in items if key not in known]
    if unknown:
        hint = did_you_mean(unknown[0], known)
        expected = f"no field {unknown[0]!r}: there are {', '.join(known)}"
        raise wrong_value(location, sorted(map(str, items)), expected, hint)
    for name, field in known.items():
        if name not in items and field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{location}.{name} is missing")
    types_by_name = _get_field_types(kind)
    return kind(
        **{
            name: decode_value(types_by_name[name], item, f"{location}.{name}")
            for name, item in items.items()
        }
    )


def _decode_union(kinds: tuple[Any, ...], content: object, location: str) -> Any:
    """Convert JSON data to the first type in `kinds` that accepts it.

    The type float is tried last, because it also accepts integers. For an optional type such as
    `int | None`, the error message is the one for `int`.
    """
    errors = {}
    for kind in sorted(kinds, key=lambda kind: kind is float):
        try:
            return decode_value(kind, content, location)
        except ValueError as error:
            errors[kind] = error
    errors.pop(type(None), None)
    if len(errors) == 1:
        raise next(iter(errors.values()))
    raise wrong_value(location, content, " or ".join(map(_describe_type, kinds)))


def _check_type(content: Any, kind: Any, location: str, expected: str) -> Any:
    is_bool_as_number = isinstance(content, bool) and kind in (int, float)
    is_string_as_list = isinstance(content, str) and kind is Sequence
    if not isinstance(content, kind) or is_bool_as_number or is_string_as_list:
        raise wrong_value(location, content, expected)
    return content


def _describe_type(kind: Any) -> str:
    if get_origin(kind) in (tuple, list, Sequence):
        return "a list"
    descriptions = {
        float: "a number",
        int: "a whole number",
        str: "a string",
        bool: "true or false",
        type(None): "None",
    }
    return descriptions.get(kind) or getattr(kind, "__name__", str(kind))
