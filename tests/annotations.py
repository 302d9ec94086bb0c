"""Faster checks of annotations for the tests, in place of jaxtyping's import hook.

- A check is compiled at the first call of its function, not at its definition.
- Arguments of the same types and shapes are checked only once.
- Only the first calls of a function are checked, because a wrong annotation shows in them.

The constructor of a dataclass is checked like any other function.
"""

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Hashable, Iterator
from importlib.machinery import SourceFileLoader
from types import CodeType, ModuleType
from typing import get_type_hints
from unittest import mock

import jaxtyping
import numpy as np
from jaxtyping import _import_hook
from torch import Tensor

check_arrays = jaxtyping.jaxtyped
# Limits of the checked calls of a function, and of their different types and shapes.
MAX_CALLS = 300
MAX_KINDS = 8


class Loader(_import_hook._JaxtypingLoader):
    """The module loader of jaxtyping, which changes the name of a module's compiled file.

    This loader changes only the names of teka's modules, so that libraries are not compiled again.
    """

    def exec_module(self, module: ModuleType) -> None:
        SourceFileLoader.exec_module(self, module)

    def get_code(self, fullname: str) -> CodeType | None:
        name = functools.partial(
            _import_hook._optimized_cache_from_source, self._typechecker.get_hash()
        )
        with mock.patch("importlib._bootstrap_external.cache_from_source", name):
            return super().get_code(fullname)


def check(*, typechecker: Callable[[Callable], Callable]) -> Callable[[Callable], Callable]:
    """Return a replacement of `jaxtyping.jaxtyped` that makes checks when a function is called.

    Functions defined within functions are not checked.
    """

    def decorate(definition: Callable) -> Callable:
        if isinstance(definition, type):
            if dataclasses.is_dataclass(definition) and "__init__" in vars(definition):
                definition.__init__ = checked_when_called(definition.__init__, typechecker)
            return definition
        # Before Python 3.11, beartype does not support `typing.Unpack` (beartype issue 509).
        has_unpack = sys.version_info < (3, 11) and "Unpack[" in repr(definition.__annotations__)
        if has_unpack or "<locals>" in definition.__qualname__:
            return definition
        return checked_when_called(definition, typechecker)

    return decorate


def checked_when_called(
    definition: Callable, typechecker: Callable[[Callable], Callable]
) -> Callable:
    """Return a function that checks the arguments of its first calls, unless checks are off.

    Arguments whose types and shapes were checked before are not checked again.
    """
    checked_kinds: set[Hashable] = set()
    num_calls = 0

    def check_again() -> None:
        nonlocal num_calls
        checked_kinds.clear()
        num_calls = 0

    @functools.cache
    def checked() -> Callable:
        return (typechecker if has_no_array(definition) else check_arrays(typechecker=typechecker))(
            definition
        )

    @functools.wraps(definition)
    def call(*arguments: object, **options: object) -> object:
        nonlocal num_calls
        if num_calls >= MAX_CALLS or jaxtyping.config.jaxtyping_disable:
            return definition(*arguments, **options)
        num_calls += 1
        kinds = (*map(argument_kind, arguments), *options, *map(argument_kind, options.values()))
        if kinds in checked_kinds:
            return definition(*arguments, **options)
        result = checked()(*arguments, **options)
        checked_kinds.add(kinds)
        if len(checked_kinds) >= MAX_KINDS:
            num_calls = MAX_CALLS
        return result

    call.check_again = check_again  # pyright: ignore[reportAttributeAccessIssue]
    return call


def argument_kind(argument: object) -> Hashable:
    """Return the type and shape of an array, the value of an integer or a string, or the type."""
    if isinstance(argument, (Tensor, np.ndarray)):
        return type(argument), argument.dtype, argument.shape
    if isinstance(argument, (int, str)):
        return type(argument), argument
    if isinstance(argument, (tuple, list)):
        return type(argument), *map(argument_kind, argument)
    return type(argument)


def has_no_array(definition: Callable) -> bool:
    """Return True if all annotations can be resolved and none of them is an array."""
    try:
        return "jaxtyping." not in repr(get_type_hints(definition))
    except NameError:  # The name is imported only for type checkers.
        return False


@contextlib.contextmanager
def annotations_unchecked() -> Iterator[None]:
    """Switch the checks of annotations off within this context."""
    was_disabled = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", was_disabled)
