"""Error messages of one form: "<argument> must be <expected>, got <value>."."""

import difflib
import unicodedata
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType

MAX_MESSAGE_LENGTH = 300  # of another library's message within one of teka's
ZERO_WIDTH_JOINERS = "\u200c\u200d"  # invisible characters that Persian words and emoji need
MAX_LISTED_NAMES = 30  # that a message lists
EXTERNAL_ERRORS = (
    Exception,
    SystemExit,
)  # what another's code may raise; only an interrupt goes through


def unknown_name(argument: str, name: object, known: Iterable[str]) -> ValueError:
    """Return an error for an unknown name. It lists the known names, or the closest ones if there are many."""
    names = sorted(known)
    if len(names) > MAX_LISTED_NAMES:
        first, *others = difflib.get_close_matches(str(name), names, n=3, cutoff=0.0)
        close = f"{first!r}, {', '.join(map(repr, others[:-1]))} or {others[-1]!r}"
        return wrong_value(argument, name, f"one of {len(names)} names; did you mean {close}?")
    return wrong_value(
        argument, name, f"one of {', '.join(map(repr, names))}{did_you_mean(name, names)}"
    )


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return the hint "; did you mean …?" with the closest known name, or "" if no name is close."""
    matches = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def wrong_value(argument: str, value: object, expected: str) -> ValueError:
    """Return an error that reads "<argument> must be <expected>, got <value>.".

    A hint after "; " in `expected` becomes a sentence of its own.

    >>> wrong_value("size", 0, "a whole number of at least 1; leave it out for the default")
    ValueError('size must be a whole number of at least 1, got 0. Leave it out for the default.')
    """
    return _error(argument, "be", expected, repr(value))


def wrong_argument(argument: str, described: str, expected: str) -> ValueError:
    """Return the same error as `wrong_value` for a value that `described` describes in words."""
    return _error(argument, "be", expected, described)


def wrong_type(argument: str, value: object, expected: str) -> ValueError:
    """Return an error for an argument of the wrong type. It states the type, not the value."""
    kind = "None" if value is None else f"an object of type {type(value).__name__}"
    return _error(argument, "be", expected, kind)


def wrong_shape(argument: str, shape: Iterable[int], expected: str) -> ValueError:
    """Return an error for a tensor of the wrong shape; `expected` is a shape in parentheses or a description."""
    if expected.startswith("("):
        return _error(argument, "have shape", expected, str(tuple(shape)))
    return _error(argument, "have", expected, f"shape {tuple(shape)}")


def _error(argument: str, verb: str, expected: str, value: str) -> ValueError:
    expected, _, hint = expected.partition("; ")
    if hint:
        first_word = hint.split()[0]
        hint = f" {hint[0].upper() if first_word.isalpha() else hint[0]}{hint[1:]}"
        hint += "" if hint.endswith(("?", ".")) else "."
    return ValueError(f"{argument} must {verb} {expected}, got {value}.{hint}")


def require(package: str, needed: str, install: str) -> ModuleType:
    """A package that only some things need, or an error: "runs need lightning, which …: pip install teka[train]"."""
    try:
        return import_module(package)
    except ImportError as error:
        name = package.partition(".")[0]
        raise ImportError(
            f"{needed} {name}, which cannot be imported: pip install {install}"
        ) from error


def printable(text: object) -> str:
    """Return text with control and bidirectional characters as escapes, so that it cannot steer a terminal."""
    return "".join(
        one if _is_printable(one) else one.encode("unicode_escape").decode() for one in str(text)
    )


def printable_lines(text: object) -> str:
    """Return text as `printable` does, but with its line breaks."""
    return "\n".join(map(printable, str(text).split("\n")))


def _is_printable(character: str) -> bool:
    return (
        character.isprintable()
        or character in ZERO_WIDTH_JOINERS
        or unicodedata.category(character) == "Zs"
    )


def one_line(text: object, most: int = MAX_MESSAGE_LENGTH) -> str:
    """Return text of unknown origin as one printable line of at most `most` characters.

    >>> one_line("three short   words", most=11)
    'three shor…'
    """
    return shorten(printable(" ".join(str(text).split())), most)


def shorten(text: str, most: int) -> str:
    """Return text of at most `most` characters, the last of which is "…" where more are left out."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def error_message(error: BaseException) -> str:
    """Return the message of an error from other code as one short line, or the name of its class if it has none."""
    return one_line(_text(error)) or type(error).__name__


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, short and printable, or the name of its class if it has none."""
    return next(filter(None, map(one_line, _text(error).splitlines())), type(error).__name__)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # which a class of other code may raise
        return ""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory was not enough: Python's, numpy's, or torch's of any device."""
    # The allocator of torch's CPU has no class of error of its own.
    return isinstance(error, MemoryError) or any(
        words in f"{type(error).__name__}: {_text(error)}"
        for words in (
            "OutOfMemoryError",
            "can't allocate memory",
            "Storage size calculation overflowed",
        )
    )
