"""Errors with messages of the form "<argument> must be <expected>, got <value>.".

The functions `wrong_value`, `wrong_type`, `wrong_shape`, `wrong_argument` and `unknown_name_error`
return an error, which the caller raises. Other functions make text from outside teka safe to print.
"""

import difflib
import unicodedata
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType

MAX_MESSAGE_LENGTH = 300  # of a message of another library that teka quotes
ZERO_WIDTH_JOINERS = "\u200c\u200d"  # invisible characters that Persian words and emoji need
MAX_LISTED_NAMES = 30
# Exceptions of user code that teka catches. It does not catch KeyboardInterrupt.
EXTERNAL_ERRORS = (Exception, SystemExit)


def unknown_name_error(
    argument: str, name: object, known: Iterable[str], hint: str = ""
) -> ValueError:
    """Create a ValueError for a name that is not one of the known names.

    The message suggests the closest known name. It lists all known names if there are at most
    `MAX_LISTED_NAMES`, and otherwise only says how many there are.
    """
    names = sorted(known)
    is_short = 0 < len(names) <= MAX_LISTED_NAMES
    listed = ", ".join(map(repr, names)) if is_short else f"{len(names)} names"
    hints = f"{did_you_mean(name, names)} {hint}".strip()
    return wrong_value(argument, name, f"one of {listed}", hints)


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return "Did you mean 'NAME'?" with the closest known name, or "" if no name is close."""
    matches = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    return f"Did you mean {matches[0]!r}?" if matches else ""


def wrong_value(argument: str, value: object, expected: str, hint: str = "") -> ValueError:
    """Create a ValueError with the message "<argument> must be <expected>, got <value>. <hint>".

    >>> wrong_value("size", 0, "at least 1", "Leave it out for the default.")
    ValueError('size must be at least 1, got 0. Leave it out for the default.')
    """
    return wrong_argument(argument, repr(value), expected, hint)


def wrong_argument(argument: str, description: str, expected: str, hint: str = "") -> ValueError:
    """Create a ValueError like `wrong_value`, with a description in place of the value.

    A description is clearer than a value that is long, such as a tensor. The message is
    "<argument> must be <expected>, got <description>. <hint>".
    """
    return ValueError(f"{argument} must be {expected}, got {description}. {hint}".rstrip())


def wrong_type(argument: str, value: object, expected: str) -> ValueError:
    """Create a ValueError like `wrong_value`, with the type of the value in place of the value.

    The message is "<argument> must be <expected>, got an object of type <type>."
    """
    kind = "None" if value is None else f"an object of type {type(value).__name__}"
    return wrong_argument(argument, kind, expected)


def wrong_shape(argument: str, shape: Iterable[int], expected: str, hint: str = "") -> ValueError:
    """Create a ValueError for a tensor of the wrong shape.

    The message is "<argument> must have shape <expected>, got <shape>. <hint>".

    Args:
        argument: Name of the argument.
        shape: Shape of the tensor.
        expected: Expected shape in parentheses, or a description of it.
        hint: Sentence at the end of the message.
    """
    if expected.startswith("("):
        message = f"{argument} must have shape {expected}, got {tuple(shape)}."
    else:
        message = f"{argument} must have {expected}, got shape {tuple(shape)}."
    return ValueError(f"{message} {hint}".rstrip())


def require(package: str, needed: str, install: str) -> ModuleType:
    """Import an optional package and return it, or raise an error that says how to install it.

    Args:
        package: Name of the package or module to import.
        needed: Start of the error message, such as "training needs".
        install: What pip should install, such as "teka[train]".

    Raises:
        ImportError: The package cannot be imported. The message says how to install it.
    """
    try:
        return import_module(package)
    except ImportError as error:
        name = package.partition(".")[0]
        message = f"{needed} {name}, which cannot be imported: pip install {install!r}"
        raise ImportError(message) from error


def escape_unprintable(text: object) -> str:
    """Replace the characters of a text that could control a terminal by escape sequences.

    These are control characters, line breaks, and characters that change the direction of a text.
    """
    return "".join(
        character if _is_printable(character) else character.encode("unicode_escape").decode()
        for character in str(text)
    )


def escape_unprintable_except_newlines(text: object) -> str:
    """Escape the same characters as `escape_unprintable`, except line breaks."""
    return "\n".join(map(escape_unprintable, str(text).split("\n")))


def _is_printable(character: str) -> bool:
    return (
        character.isprintable()
        or character in ZERO_WIDTH_JOINERS
        or unicodedata.category(character) == "Zs"
    )


def to_one_line(text: object, max_length: int = MAX_MESSAGE_LENGTH) -> str:
    """Convert a text to one line of at most `max_length` characters that is safe to print.

    >>> to_one_line("three short   words", max_length=11)
    'three shor…'
    """
    return shorten(escape_unprintable(" ".join(str(text).split())), max_length)


def shorten(text: str, max_length: int) -> str:
    """Shorten a text to at most `max_length` characters. A shortened text ends with "…"."""
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"


def error_message(error: BaseException) -> str:
    """Return the whole message of an error on one line, or its class name if it has no message."""
    return to_one_line(_text(error)) or type(error).__name__


def first_line_of_error(error: BaseException) -> str:
    """Return the first line of an error's message, or its class name if it has no message."""
    lines = map(to_one_line, _text(error).splitlines())
    return next(filter(None, lines), type(error).__name__)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # __str__ of a foreign class may fail
        return ""


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for an out-of-memory error of Python, NumPy or PyTorch on any device."""
    if isinstance(error, MemoryError):
        return True
    # PyTorch has no exception class for this error on a CPU, so search the message.
    text = f"{type(error).__name__}: {_text(error)}"
    phrases = ("OutOfMemoryError", "can't allocate memory", "Storage size calculation overflowed")
    return any(phrase in text for phrase in phrases)
