"""How the tests check annotations: what jaxtyping's import hook puts on every function of teka, at less cost.

Its checks bind the arguments and check them twice, whether or not there is an array, and are written and compiled anew
whenever a function is defined. Here a check is compiled at the first call of its function. It depends on types and
shapes alone, so that arguments of the same types and shapes are not checked again, and it ends after some calls: most
functions are called thousands of times, and an annotation that is wrong shows in the first calls of some test. The
constructor of a dataclass is checked like any other function.
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
# A process checks the first calls of each function, until so many calls or different types and shapes of arguments.
MAX_CALLS = 300
MAX_KINDS = 8


class Loader(_import_hook._JaxtypingLoader):
    """How jaxtyping loads a module, whose compiled file has a name of its own: here that of this module alone.

    Otherwise all libraries that the module imports had such a name too, and were compiled anew.
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
    """Return what takes the place of `jaxtyping.jaxtyped`: checks that are made when a function is called.

    Functions inside functions, which are defined in each call of the one around them, are not checked.
    """

    def decorate(definition: Callable) -> Callable:
        if isinstance(definition, type):
            if dataclasses.is_dataclass(definition) and "__init__" in vars(definition):
                definition.__init__ = checked_when_called(definition.__init__, typechecker)
            return definition
        # beartype does not know what stands in for `typing.Unpack` before Python 3.11 (beartype issue 509).
        before = sys.version_info < (3, 11) and "Unpack[" in repr(definition.__annotations__)
        if before or "<locals>" in definition.__qualname__:
            return definition
        return checked_when_called(definition, typechecker)

    return decorate


def checked_when_called(
    definition: Callable, typechecker: Callable[[Callable], Callable]
) -> Callable:
    """Return the function with checks in its first calls, except while checks are off.

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
    def either(*arguments: object, **options: object) -> object:
        nonlocal num_calls
        if num_calls >= MAX_CALLS or jaxtyping.config.jaxtyping_disable:
            return definition(*arguments, **options)
        num_calls += 1
        kinds = (*map(kind, arguments), *options, *map(kind, options.values()))
        if kinds in checked_kinds:
            return definition(*arguments, **options)
        result = checked()(*arguments, **options)
        checked_kinds.add(kinds)
        if len(checked_kinds) >= MAX_KINDS:
            num_calls = MAX_CALLS
        return result

    either.check_again = check_again  # pyright: ignore[reportAttributeAccessIssue]
    return either


def kind(argument: object) -> Hashable:
    """Types, shapes, and numbers and names as they are, which sizes may hang on; of other objects the type alone."""
    if isinstance(argument, (Tensor, np.ndarray)):
        return type(argument), argument.dtype, argument.shape
    if isinstance(argument, (int, str)):
        return type(argument), argument
    if isinstance(argument, (tuple, list)):
        return type(argument), *map(kind, argument)
    return type(argument)


def has_no_array(definition: Callable) -> bool:
    """Whether annotations name types that are there, and no array among them."""
    try:
        return "jaxtyping." not in repr(get_type_hints(definition))
    except NameError:  # imported for type checkers alone, which jaxtyping takes for anything
        return False


@contextlib.contextmanager
def annotations_unchecked() -> Iterator[None]:
    """Switch the checks of annotations off, and then to what they were: a test may ask for it in such a file."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)
