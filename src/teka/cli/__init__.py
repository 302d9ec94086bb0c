"""The `teka` command."""

import contextlib
import io
import logging
import os
import pkgutil
import shlex
import signal
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from functools import partial

from cyclopts import App
from cyclopts.exceptions import CycloptsError

from teka import __version__
from teka.cli import child
from teka.cli.app import describe_error, make_app
from teka.cli.child import BROKEN_PIPE, INTERRUPTED, USAGE_ERROR
from teka.errors import first_line, is_out_of_memory, one_line, unknown_name

# The object and the purpose of each command.
COMMANDS = {
    "demo": (
        "teka.cli.shift:demo",
        "train five small models on digits, shift the images and compare",
    ),
    "download": ("teka.cli.pictures:download", "fetch published data sets and check them"),
    "train": ("teka.cli.runs:train", "train a model on a data set"),
    "evaluate": ("teka.cli.runs:evaluate", "accuracy of a trained run on its test images"),
    "shift": ("teka.cli.shift:shift", "accuracy of trained runs at every shift"),
    "export": ("teka.cli.runs:export", "write a trained run's model as a model file"),
    "predict": ("teka.cli.pictures:predict", "what a trained model says of pictures"),
    "audit": ("teka.cli.audit:audit", "what a model makes of images that move"),
    "compare": ("teka.cli.compare:compare", "models over the same images, moved alike"),
    "mend": (
        "teka.cli.mend:mend",
        "change what a model loses shifts by, and audit it before and after",
    ),
}
HELP = """usage: teka COMMAND [options]

Attention that depends on where things are relative to each other: models, training and measurement.

commands:
{}

teka COMMAND --help shows the options of a command, with examples; teka --version the version."""
__all__ = ["COMMANDS", "main", "make_app"]
MOST_CHARACTERS = 2000  # of an error, whose foreign parts are shorter
ISOLATED = ("audit", "compare", "mend")  # commands that run a model's code


def main(
    arguments: Sequence[str] | None = None,
    commands: Mapping[str, tuple[str, str]] = COMMANDS,
    program: str = "teka",
    app: App | None = None,
) -> int:
    """Run the `teka` command.

    Without arguments, as the command line calls it, commands that run a model's code do so in a child process, so that
    the code cannot end the command without an error. With arguments everything runs in this process, where a model can
    end it by `os._exit` or a crash.

    Args:
        arguments: The words after `teka`; by default those of the process.
        commands: The object and the purpose of each command.
        program: The words before the command in the command line that results record.
        app: Parser of the arguments, as `make_app` returns it.

    Returns:
        Exit code: 0 if all went well, 1 only if an audit stayed below its threshold, 130 if interrupted, and 141 if the
        reader of the output is gone. For anything else it is 2, with one line on standard error.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None and words and words[0] in ISOLATED:
        return child.run_in_child(run, words, partial(_say, words))
    return run(words, commands, program, app)


def run(
    words: list[str],
    commands: Mapping[str, tuple[str, str]] = COMMANDS,
    program: str = "teka",
    app: App | None = None,
) -> int:
    """Run a command in this process, from its words to its exit code."""
    _open_output()
    before = _output()
    try:
        try:
            code = _run(words, commands, program) if app is None else run_app(words, app)
        except SystemExit:  # of the parser, which has printed help or an error
            sys.stdout.flush()
            raise
        if _output() == before:
            sys.stdout.flush()
            return code
        return (
            code
            if code == USAGE_ERROR
            else _say(words, "the model's code closed or replaced standard output")
        )
    except KeyboardInterrupt:
        if child.in_child() and not child.was_interrupted():
            return _say(words, "the model's code raised KeyboardInterrupt")
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one has nothing left to stop
        sys.stderr.write("\ninterrupted\n")
        return INTERRUPTED
    except BrokenPipeError:
        _close_output()
        return BROKEN_PIPE
    except OSError as error:
        _close_output()
        where = f": {error.filename}" if error.filename else ""
        return _say(words, f"{error.strerror}{where}" if error.strerror else error)
    finally:
        if _output() != before:
            _close_output()


def _run(given: list[str], commands: Mapping[str, tuple[str, str]], program: str) -> int:
    if not given or given[0] in ("-h", "--help"):
        lines = [
            f"  {name:<{max(map(len, commands))}}  {purpose}"
            for name, (_, purpose) in commands.items()
        ]
        print(HELP.format("\n".join(lines)))
        return 0
    if given[0] == "--version":
        print(f"teka {__version__}")
        return 0
    name = given[0]
    if name not in commands:
        return _say([], unknown_name("command", name, commands))
    try:
        command = pkgutil.resolve_name(commands[name][0])
    except ModuleNotFoundError as error:
        return _say([], f"{error.name} is not installed; pip install 'teka[train,report]'")
    except ImportError as error:
        return _say(given, error)
    for part in ("pytorch", "fabric"):
        logging.getLogger(f"lightning.{part}").setLevel(logging.WARNING)
    try:
        options = command.make_parser().parse_args(given[1:])
    except (ValueError, ImportError) as error:
        return _say(given, error)
    shown = warnings.formatwarning
    warnings.formatwarning = lambda message, *_: (
        f"teka {name}: warning: {one_line(message, MOST_CHARACTERS)}\n"
    )
    try:
        return command.main(options, f"{program} {shlex.join(given)}") or 0
    except OSError:
        raise
    except (ValueError, ImportError, FloatingPointError) as error:
        return _say(given, error)
    except SystemExit as error:  # no command leaves so; a model's own code may
        return _say(given, f"the model's code ended the program with sys.exit({error.code!r})")
    except Exception as error:
        if is_out_of_memory(error):
            return _say(given, str(error) or "out of memory")
        traceback.print_exc()
        return _say(given, "internal error; please report it with the traceback above")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # teka raises none
        return _say(given, f"the model's code raised {type(error).__name__}: {first_line(error)}")
    finally:
        warnings.formatwarning = shown


def run_app(words: list[str], app: App) -> int:
    """Run a command of an app and return its exit code."""
    program = app.name[0]
    command = words[0] if words and words[0] in app else ""
    error_prefix = f"{program} {command}".strip()
    shown = warnings.formatwarning
    warnings.formatwarning = lambda message, *_: (
        f"{error_prefix}: warning: {one_line(message, MOST_CHARACTERS)}\n"
    )
    try:
        if command:
            app[command].help = None  # show the docstring instead of the summary
        function, bound, unparsed = app.parse_args(words, print_error=False, exit_on_error=False)
        line = {"command": f"{program} {shlex.join(words)}"} if "command" in unparsed else {}
        return function(*bound.args, **bound.kwargs, **line) or 0
    except OSError:
        raise
    except CycloptsError as error:
        return _say([command], describe_error(error), program)
    except ImportError as error:
        cause = error.__cause__ or error  # the parser's own error says less
        missing = cause.name if isinstance(cause, ModuleNotFoundError) else None
        hint = f"{missing} is not installed; pip install 'teka[train,report]'"
        return _say([command], hint if missing else cause, program)
    except (ValueError, FloatingPointError) as error:
        return _say([command], error, program)
    except SystemExit as error:  # no command leaves so; a model's own code may
        message = f"the model's code ended the program with sys.exit({error.code!r})"
        return _say([command], message, program)
    except Exception as error:
        if is_out_of_memory(error):
            return _say([command], str(error) or "out of memory", program)
        traceback.print_exc()
        message = "internal error; please report it with the traceback above"
        return _say([command], message, program)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # teka raises none
        message = f"the model's code raised {type(error).__name__}: {first_line(error)}"
        return _say([command], message, program)
    finally:
        warnings.formatwarning = shown


def _say(given: Sequence[str], message: object, program: str = "teka") -> int:
    """Print an error in one line, even if a model's code closed standard error, and return its exit code."""
    line = (
        f"{' '.join([program, *given[:1]]).strip()}: error: {one_line(message, MOST_CHARACTERS)}\n"
    )
    try:
        sys.stderr.write(line)
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        with contextlib.suppress(OSError):
            os.write(2, line.encode(errors="replace"))
    return USAGE_ERROR


def _open_output() -> None:
    """Make the output one that can be written to: not closed, and with a "?" for what the terminal does not have."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, io.StringIO())
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _output() -> tuple[object, ...]:
    """Return what identifies standard output, which differs once a model's code has closed or replaced it."""
    stream = sys.stdout
    if stream is None or stream.closed:
        return (None,)
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):  # a stream in memory has no number
        return (stream,)
    return (stream, status.st_dev, status.st_ino)


def _close_output() -> None:
    """Keep Python from writing at its exit what could not be written."""
    for number, stream in enumerate((sys.stdout, sys.stderr), start=1):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), number)
