"""The guard against auditing a module that still trains, and a way to audit it all the same."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


def check_evaluation_mode(argument: str, function: object) -> None:
    """Refuse a module, or a method of one, of which any part is in training mode.

    Dropout would add noise to every measurement, and batch normalisation would learn from it.

    Args:
        argument: The name under which the caller received the function.
        function: Any callable; only modules and their bound methods can be examined.

    Raises:
        ValueError: A part of the module is in training mode.
    """
    module = module_of(function)
    if module is None:
        return
    for name, part in module.named_modules():
        if part.training:
            place = f"its part {name!r}" if name else "it"
            kind = type(module).__name__
            raise ValueError(
                f"{argument} is a {kind} and {place} is in training mode, expected evaluation: call .eval()"
            )


def module_of(function: object) -> nn.Module | None:
    """The module that a function is, or is a method of; None if it is none.

    Args:
        function: Any callable.
    """
    module = function if isinstance(function, nn.Module) else getattr(function, "__self__", None)
    return module if isinstance(module, nn.Module) else None


@contextmanager
def evaluating(module: nn.Module | None) -> Iterator[None]:
    """A context in which all parts of a module are in evaluation mode; afterwards each is as it was.

    Args:
        module: The module, or None.
    """
    training = [] if module is None else [part for part in module.modules() if part.training]
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True
