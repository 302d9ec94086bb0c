"""How the tests check annotations: what jaxtyping's import hook puts on every function of teka, at less cost.

Its checks of arrays bind the arguments and check them twice, in 40 µs a call, and are compiled in 2 ms. They were most
of the time of many tests, though most functions that are called often take no array.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import get_type_hints

import jaxtyping

check_arrays = jaxtyping.jaxtyped


def check(*, typechecker: Callable[[Callable], Callable]) -> Callable[[Callable], Callable]:
    """What takes the place of `jaxtyping.jaxtyped`: sizes of arrays are compared where there are any."""

    def decorate(definition: Callable) -> Callable:
        if isinstance(definition, type):
            return check_arrays(definition, typechecker=typechecker)
        if "<locals>" in definition.__qualname__:  # made, and so compiled, anew in each call of the function around it
            return definition
        if has_no_array(definition):
            return unless_switched_off(definition, typechecker(definition))
        return check_arrays(definition, typechecker=typechecker)

    return decorate


def has_no_array(definition: Callable) -> bool:
    """Whether annotations name types that are there, and no array among them."""
    try:
        return "jaxtyping." not in repr(get_type_hints(definition))
    except NameError:  # imported for type checkers alone, which jaxtyping takes for anything
        return False


def unless_switched_off(definition: Callable, checked: Callable) -> Callable:
    """The checked function, or the bare one while checks are off."""

    @functools.wraps(definition)
    def either(*arguments: object, **options: object) -> object:
        return (definition if jaxtyping.config.jaxtyping_disable else checked)(*arguments, **options)

    return either


@contextlib.contextmanager
def annotations_unchecked() -> Iterator[None]:
    """Switch the checks of annotations off, and then to what they were: a test may ask for it in such a file."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)
