"""The command-line app `teka`: its commands, and the parsing of option values."""

import difflib
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
    UnknownOptionError,
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
    """Create the app `teka` with its commands. Other packages can add commands to it.

    The code of a command is imported when the command is used, so that `teka --help` is fast.

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
            converter=parse_option_value,
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
    """Console that prints help pages.

    If the output is closed early, for example by `teka --help | head`, the console raises the
    BrokenPipeError that `main` handles for all commands.
    """

    def on_broken_pipe(self) -> None:
        raise  # rich would raise SystemExit(1) instead


def _format_default(value: Any) -> Any:
    """Format the default value of an option for its help text.

    Return None for flags and empty tuples, so that the help shows no default.
    """
    if value is False or value == ():
        return None
    return " ".join(map(str, value)) if isinstance(value, tuple) else value


def _count_option_arguments(kind: Any, **options: Any) -> tuple[int, bool]:
    """Return how many command-line arguments an option of the type `kind` consumes.

    cyclopts 4 raises an error for types such as `int | tuple[int, int]`. Options of such a type
    consume one argument, for example "32" or "[32, 48]".
    """
    try:
        return _convert.token_count(kind, **options)
    except ValueError:
        return 1, False


if cyclopts.__version__.startswith("4."):  # on Python 3.10
    setattr(_argument, "token_count", _count_option_arguments)  # noqa: B010, it is private


def parse_option_value(kind: Any, tokens: Sequence[Token]) -> Any:
    """Convert the command-line arguments of an option to a value of the type `kind`.

    An argument that is valid JSON, such as "3" or "[1, 2]", is parsed as JSON. Other arguments are
    strings, but "None" means None unless the option is a string. An empty argument is an error.
    """
    name = (tokens[0].keyword or "the argument").strip("[]")
    arguments = [token.value for token in tokens]
    if "" in arguments:
        raise wrong_value(name, "", "a value")
    if arguments == ["None"] and kind is not str:  # cyclopts 4 omits None from the type
        return None
    json_values = [_parse_json_or_text(text) for text in arguments]
    takes_only_lists = all(
        get_origin(option) in (list, tuple, Sequence)
        for option in (get_args(kind) if type(None) in get_args(kind) else (kind,))
        if option is not type(None)
    )
    is_list = len(arguments) > 1 or (takes_only_lists and not isinstance(json_values[0], list))
    try:
        return decode_value(kind, json_values if is_list else json_values[0], name)
    except ValueError as error:
        try:  # a string that looks like JSON, such as a file named 5
            return decode_value(kind, arguments if is_list else arguments[0], name)
        except ValueError:
            raise error from None


def _parse_json_or_text(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def describe_parser_error(error: CycloptsError, program: str) -> str:
    """Return a message for an error of the command-line parser.

    The message names the wrong option or argument.

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
        count = argument.token_count()[0]
        return f"{argument.name} needs {f'{count} values' if count > 1 else 'a value'}"
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return f"{error.unused_tokens[0]!r} is not expected here"
    if isinstance(error, UnknownOptionError):
        option = (error.token.keyword or error.token.value).partition("=")[0]
        arguments = [argument for argument in error.argument_collection if argument.parse]
        names = [name for argument in arguments for name in argument.names]
        return f"Unknown option: {option}. {_suggest_option(option, names, program)}"
    error.verbose = False
    return str(error)


def _suggest_option(option: str, names: Sequence[str], program: str) -> str:
    """Return a hint for an unknown option: the most similar name, or else the help page.

    Names are compared without their leading dashes, which would make all short names similar. If no
    name is similar, an option that starts with the unknown name and a dash is suggested.
    """
    word = option.strip("-")
    by_word = {name.strip("-").lower(): name for name in names}
    longer = [name for name in by_word if name.startswith(f"{word}-")]
    similar = difflib.get_close_matches(word, by_word, n=1, cutoff=0.7)
    if suggestions := similar or longer:
        return f"Did you mean {by_word[suggestions[0]]}?"
    return f"See {program} --help."
