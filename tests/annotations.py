"""How the tests check annotations: what jaxtyping's import hook puts on every function of teka, at less cost.

Its checks bind the arguments and check them twice, whether or not there is an array, and are written and compiled anew
whenever a function is defined. That was 30 of 68 s of one file of contracts.
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import get_type_hints

import jaxtyping

check_arrays = jaxtyping.jaxtyped


def check(*, typechecker: Callable[[Callable], Callable]) -> Callable[[Callable], Callable]:
    """What takes the place of `jaxtyping.jaxtyped`: the same for classes, and for functions checks made when called.

    Functions inside functions, which are defined in each call of the one around them, are not checked.
    """

    def decorate(definition: Callable) -> Callable:
        if isinstance(definition, type):
            return check_arrays(definition, typechecker=typechecker)
        # beartype does not know what stands in for `typing.Unpack` before Python 3.11 (beartype issue 509).
        before = sys.version_info < (3, 11) and "Unpack[" in repr(definition.__annotations__)
        if before or "<locals>" in definition.__qualname__:
            return definition
        return checked_when_called(definition, typechecker)

    return decorate


def checked_when_called(definition: Callable, typechecker: Callable[[Callable], Callable]) -> Callable:
    """The function with its checks, which are made at the first call, or the bare one while checks are off."""

    @functools.cache
    def checked() -> Callable:
        return (typechecker if has_no_array(definition) else check_arrays(typechecker=typechecker))(definition)

    @functools.wraps(definition)
    def either(*arguments: object, **options: object) -> object:
        return (definition if jaxtyping.config.jaxtyping_disable else checked())(*arguments, **options)

    return either


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
