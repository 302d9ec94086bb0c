"""The parser of the `teka` command: its commands, and how it reads their options."""

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
        "teka.cli.compare:compare",
        "Audit models on the same shifted images and compare every two of them.",
    ),
    "fix": (
        "teka.cli.fix:fix",
        "Make a model less sensitive to shifts without training, and audit it before and after.",
    ),
}
# Options that are not named after the field that they set.
OPTION_NAMES = {"deviation": "std", "blue_first": "bgr", "budget_seconds": "budget"}


def make_app(name: str = "teka") -> App:
    """Return the parser with every command of teka. Other packages can add commands to it.

    A command is imported when it is used, so that `teka --help` is fast.

    Args:
        name: Words before the command, for error messages and for the command line that results
            record.
    """
    app = App(
        name=name,
        help="Train, use and audit vision models whose attention depends on relative positions.",
        version=f"teka {__version__}",
        group_parameters="Options",
        console=_Console(),
        help_formatter=DefaultFormatter(panel_spec=PanelSpec(box=SIMPLE)),
        default_parameter=Parameter(
            converter=convert,
            consume_multiple=1,
            allow_repeating=True,
            negative=(),
            name_transform=lambda field: OPTION_NAMES.get(field, field).replace("_", "-"),
            show_default=lambda value: None if value is False or value == () else value,
        ),
    )
    for order, (command, (path, summary)) in enumerate(COMMANDS.items()):
        app.command(path, name=command, help=summary, sort_key=order)
    app.command("teka.cli.fix:fix", name="mend", show=False)  # its former name
    return app


class _Console(Console):
    """A console that does not hide that the reader of the output is gone."""

    def on_broken_pipe(self) -> None:
        raise  # the BrokenPipeError, instead of SystemExit(1)


def _count_words(kind: Any, **options: Any) -> tuple[int, bool]:
    """Return 1 for a union such as `int | tuple[int, int]`, which cyclopts 4 cannot count."""
    try:
        return _convert.token_count(kind, **options)
    except ValueError:
        return 1, False


if cyclopts.__version__.startswith("4."):  # on Python 3.10
    setattr(_argument, "token_count", _count_words)  # noqa: B010, it is private


def convert(kind: Any, tokens: Sequence[Token]) -> Any:
    """Convert the words of an option to its type. A word is JSON or a string.

    The conversion is strict: no number is rounded, and an empty word is an error.
    """
    name = (tokens[0].keyword or "the argument").strip("[]")
    words = [{"True": "true", "False": "false"}.get(t.value, t.value) for t in tokens]  # of YAML
    if "" in words:
        raise wrong_value(name, "", "a value")
    is_list = len(words) > 1 or all(
        get_origin(option) in (list, tuple, Sequence)
        for option in (get_args(kind) if type(None) in get_args(kind) else (kind,))
        if option is not type(None)
    )
    json_values = [_read_json(word) for word in words]
    try:
        return decode_value(kind, json_values if is_list else json_values[0], name)
    except ValueError as error:
        try:  # a string that looks like JSON, such as a file named 5
            return decode_value(kind, words if is_list else words[0], name)
        except ValueError:
            raise error from None


def _read_json(word: str) -> object:
    try:
        return json.loads(word)
    except (ValueError, RecursionError):
        return word


def describe_error(error: CycloptsError, program: str) -> str:
    """Return what is wrong with a command line: the argument, its value and what was expected.

    Args:
        error: Error of the parser.
        program: Program and command.
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
