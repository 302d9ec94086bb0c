"""Command-line parser of `teka`: its commands, and the types of option values."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, get_args, get_origin

import cyclopts
from cyclopts import App, Parameter, Token, _convert
from cyclopts.argument import _argument
from cyclopts.exceptions import (
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    UnusedCliTokensError,
)
from cyclopts.help import DefaultFormatter, PanelSpec
from rich.box import SIMPLE
from rich.console import Console

from teka import __version__
from teka.codec import decode_value
from teka.errors import wrong_value

# Annotation of the keyword-only parameter `command` of a function that records its command line.
CommandLine = Annotated[str, Parameter(parse=False)]
# Import path and summary of each command, in the order of the help.
COMMANDS = {
    "demo": (
        "teka.cli.shift:demo",
        "Train four small models on digits and compare them on shifted images.",
    ),
    "download": ("teka.cli.pictures:download", "Download published data sets and check them."),
    "train": ("teka.cli.runs:train_app", "Train a model on a data set."),
    "evaluate": (
        "teka.cli.runs:evaluate",
        "Measure the accuracy of a trained run on every test image.",
    ),
    "shift": (
        "teka.cli.shift:shift",
        "Measure the accuracy of trained runs at every shift of their test images.",
    ),
    "export": ("teka.cli.runs:export", "Write the best weights of a finished run as a model file."),
    "predict": ("teka.cli.pictures:predict", "Classify picture files with a trained model."),
    "audit": (
        "teka.cli.audit:audit",
        "Measure how the predictions of a model change when its input images are shifted.",
    ),
    "compare": (
        "teka.cli.audit:compare",
        "Audit models on the same shifted images and compare each pair of models.",
    ),
    "fix": (
        "teka.cli.fix:fix",
        "Make a model less sensitive to shifts without training, and audit it before and after.",
    ),
}
# Names of options that differ from the name of the field that they set.
OPTION_NAMES = {"deviation": "std", "blue_first": "bgr", "budget_seconds": "budget"}


def make_app(name: str = "teka") -> App:
    """Return the command-line parser of teka, to which other packages can add commands.

    A command is imported when it is first used, so that `teka --help` is fast.

    Args:
        name: Name of the program in error messages and in saved command lines.
    """
    app = App(
        name=name,
        help="Train, use and audit vision models whose attention depends on relative positions.",
        version=f"teka {__version__}",
        group_parameters="Options",
        console=_HelpConsole(),
        help_formatter=DefaultFormatter(panel_spec=PanelSpec(box=SIMPLE)),
        default_parameter=Parameter(
            converter=parse_option,
            consume_multiple=1,
            allow_repeating=True,
            negative=(),
            name_transform=lambda field: OPTION_NAMES.get(field, field).replace("_", "-"),
            show_default=_format_default,
        ),
    )
    for order, (command, (path, summary)) in enumerate(COMMANDS.items()):
        app.command(path, name=command, help=summary, sort_key=order)
    app.command("teka.cli.fix:fix", name="mend", show=False)  # its former name
    return app


class _HelpConsole(Console):
    """Console that prints the help of commands.

    If a program such as `head` closes the output, the console raises BrokenPipeError.
    """

    def on_broken_pipe(self) -> None:
        raise  # rich would raise SystemExit(1) instead


def _format_default(value: Any) -> Any:
    """Return a default value as the help shows it, or None for a flag and an empty tuple."""
    if value is False or value == ():
        return None
    return " ".join(map(str, value)) if isinstance(value, tuple) else value


def _count_option_words(kind: Any, **options: Any) -> tuple[int, bool]:
    """Return how many command-line words an option of the type `kind` takes.

    cyclopts 4 raises an error for a type such as `int | tuple[int, int]`. teka reads the value of
    such an option from one word, for example "32" or "[32, 48]".
    """
    try:
        return _convert.token_count(kind, **options)
    except ValueError:
        return 1, False


if cyclopts.__version__.startswith("4."):  # on Python 3.10
    setattr(_argument, "token_count", _count_option_words)  # noqa: B010, it is private


def parse_option(kind: Any, tokens: Sequence[Token]) -> Any:
    """Convert the command-line words of an option to a value of its type.

    A word that is valid JSON, such as "3" or "[1, 2]", is read as JSON. The word "None" is the
    value None, except for strings. Any other word is a string. An empty word is an error.
    """
    name = (tokens[0].keyword or "the argument").strip("[]")
    words = [token.value for token in tokens]
    if "" in words:
        raise wrong_value(name, "", "a value")
    if words == ["None"] and kind is not str:  # cyclopts 4 omits None from the type
        return None
    json_values = [_parse_json_or_text(word) for word in words]
    takes_only_lists = all(
        get_origin(option) in (list, tuple, Sequence)
        for option in (get_args(kind) if type(None) in get_args(kind) else (kind,))
        if option is not type(None)
    )
    is_list = len(words) > 1 or (takes_only_lists and not isinstance(json_values[0], list))
    try:
        return decode_value(kind, json_values if is_list else json_values[0], name)
    except ValueError as error:
        try:  # a string that looks like JSON, such as a file named 5
            return decode_value(kind, words if is_list else words[0], name)
        except ValueError:
            raise error from None


def _parse_json_or_text(word: str) -> object:
    try:
        return json.loads(word)
    except (ValueError, RecursionError):
        return word


def describe_error(error: CycloptsError, program: str) -> str:
    """Return a message for the user that names the wrong option or argument.

    Args:
        error: Error of the parser.
        program: Name of the program and the command, such as "teka train".
    """
    if isinstance(error, CoercionError) and isinstance(error.msg, str):
        return error.msg
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        argument = error.argument
        if error.keyword is None and argument.required:
            options = [option for option in argument.children_recursive if not option.children]
            missing = next((option for option in options if option.required), argument)
            return f"{missing.name} is required; see {program} --help"
        name = argument.name
        count = argument.token_count()[0]
        return f"{name} needs {f'{count} values' if count > 1 else 'a value'}"
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return f"{error.unused_tokens[0]!r} is not expected here"
    error.verbose = False
    return str(error)
