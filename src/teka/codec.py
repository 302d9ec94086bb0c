"""Saved dataclasses: what is ready for JSON from one, and one from that, by the types of its fields."""

import re
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from teka.errors import did_you_mean, wrong_value

T = TypeVar("T")
Proportion = Annotated[float, 1, "a share from 0 to 1"]
NonNegativeFloat = Annotated[float, sys.float_info.max, "a finite number of at least 0"]
NonNegativeInt = Annotated[int, sys.float_info.max, "a whole number of at least 0"]
"""Types of fields whose numbers `decode` checks: from 0 to the largest, in words."""


def encode(value: object) -> Any:
    """Dataclasses as dictionaries of their fields, tuples as lists, keys as strings, and no NumPy; ready for JSON."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    return str(value) if isinstance(value, Path) else value


def decode(kind: type[T], content: object, argument: str | None = None) -> T:
    """The dataclass that `encode` wrote; a field that is missing takes its default, if it has one.

    A ValueError names what is missing, unknown or of another type; the whole is `argument`, or the dataclass's name.
    """
    return _decode(kind, content, argument or kind.__name__)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _decode(kind: Any, content: object, where: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _decode_fields(kind, content, where)
    if origin in (Union, types.UnionType):
        return _decode_union(arguments, content, where)
    if origin is Annotated:
        number, most, expected = _decode(arguments[0], content, where), *arguments[1:]
        if not 0 <= number <= most:
            raise wrong_value(where, content, expected)
        return number
    if origin is Literal:
        if content not in arguments:
            raise wrong_value(where, content, f"one of {', '.join(map(repr, arguments))}")
        return content
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        found = _checked(content, Sequence, where, f"a list of {len(arguments)}")
        if len(found) != len(arguments):
            raise wrong_value(where, content, f"a list of {len(arguments)}")
        pairs = zip(arguments, found, strict=True)
        return tuple(
            _decode(one, item, f"{where}[{index}]") for index, (one, item) in enumerate(pairs)
        )
    if origin in (tuple, list, Sequence):
        found = _checked(content, Sequence, where, "a list")
        items = [
            _decode(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(found)
        ]
        return items if origin is list else tuple(items)
    if origin in (dict, Mapping):
        found = _checked(content, Mapping, where, "a dictionary")
        of_key = arguments[0] if arguments[0] in (int, float) else str
        for key in found if of_key is int else ():
            if not re.fullmatch("0|-?[1-9][0-9]*", str(key)):
                raise wrong_value(f"{where}.{key}", key, "a whole number as key, such as '-4'")
        return {
            of_key(key): _decode(arguments[1], item, f"{where}.{key}")
            for key, item in found.items()
        }
    if kind in (Any, object):
        return content
    if kind is float and isinstance(content, int) and not isinstance(content, bool):
        if abs(content) > sys.float_info.max:
            raise wrong_value(where, content, f"a number up to {sys.float_info.max:.2g}")
        return float(content)
    if kind is Path and isinstance(content, str):
        return Path(content)
    return _checked(content, origin or kind, where, _words(kind))


def _decode_fields(kind: Any, content: object, where: str) -> Any:
    found = _checked(content, Mapping, where, "a dictionary")
    known = {field.name: field for field in fields(kind) if field.init}
    unknown = [key for key in found if key not in known]
    if unknown:
        expected = f"no field {unknown[0]!r}: there are {', '.join(known)}{did_you_mean(unknown[0], known)}"
        raise wrong_value(where, sorted(map(str, found)), expected)
    for name, field in known.items():
        if name not in found and field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{where}.{name} is missing")
    return kind(
        **{
            name: _decode(_hints(kind)[name], item, f"{where}.{name}")
            for name, item in found.items()
        }
    )


def _decode_union(kinds: tuple[Any, ...], content: object, where: str) -> Any:
    """By the first kind that fits; the error of the only one that is not None is its own."""
    errors = {}
    for kind in sorted(kinds, key=lambda one: one is float):  # an int stays one
        try:
            return _decode(kind, content, where)
        except ValueError as error:
            errors[kind] = error
    others = [error for kind, error in errors.items() if kind is not type(None)]
    raise (
        others[0]
        if len(others) == 1
        else wrong_value(where, content, " or ".join(map(_words, kinds)))
    )


def _checked(content: Any, kind: Any, where: str, expected: str) -> Any:
    right = isinstance(content, kind) and not (isinstance(content, bool) and kind in (int, float))
    if not right or (kind is Sequence and isinstance(content, str)):
        raise wrong_value(where, content, expected)
    return content


def _words(kind: Any) -> str:
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    known = {
        float: "a number",
        int: "a whole number",
        str: "a string",
        bool: "true or false",
        type(None): "None",
    }
    return known.get(kind) or getattr(kind, "__name__", str(kind))
