"""Messages for bad input, in one voice: the argument, what came, what was expected."""

import difflib
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType

FOREIGN = (Exception, SystemExit)  # what another's code may raise; only an interrupt goes through


def unknown_name(argument: str, name: object, known: Iterable[str]) -> ValueError:
    """Error for a name that is not one of the known ones; it offers the nearest."""
    names = sorted(known)
    return ValueError(f"{argument} is {name!r}, expected one of {', '.join(map(repr, names))}{nearest(name, names)}")


def nearest(name: object, known: Iterable[str]) -> str:
    """The question, at the end of a message, whether one of the known names was meant; empty if none is near."""
    found = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    return f"; did you mean {found[0]!r}?" if found else ""


def wrong_value(argument: str, came: object, expected: str) -> ValueError:
    """Error for a value that the argument does not take; `expected` says in words what would have been right."""
    return ValueError(f"{argument} is {came!r}, expected {expected}")


def wrong_type(argument: str, came: object, expected: str) -> ValueError:
    """Error for something of another kind altogether, of which the type says more than the value."""
    kind = None if came is None else f"of type {type(came).__name__}"
    return ValueError(f"{argument} is {kind}, expected {expected}")


def wrong_shape(argument: str, came: Iterable[int], expected: str) -> ValueError:
    """Error for a tensor of the wrong shape; `expected` in words or symbols."""
    return ValueError(f"{argument} has shape {tuple(came)}, expected {expected}")


def require(package: str, needed: str, install: str) -> ModuleType:
    """A package that only some things need, or an error: "runs need lightning, which …: pip install teka[train]"."""
    try:
        return import_module(package)
    except ImportError as error:
        name = package.partition(".")[0]
        raise ImportError(f"{needed} {name}, which cannot be imported: pip install {install}") from error


def first_line(error: BaseException) -> str:
    """What an error says first, or its class if it says nothing: a reason that fits into another message."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory was not enough: Python's, numpy's, or torch's of any device."""
    # The allocator of torch's CPU has no class of error of its own.
    return isinstance(error, MemoryError) or any(
        words in f"{type(error).__name__}: {error}"
        for words in ("OutOfMemoryError", "can't allocate memory", "Storage size calculation overflowed")
    )
