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
from collections.abc import Sequence

from teka import __version__
from teka.errors import is_out_of_memory, unknown_name

# Where each command is within this package, and what it is for.
COMMANDS = {
    "demo": ("experiments:demo", "train five small models on digits, shift the images and compare"),
    "download": ("pictures:download", "fetch published data sets and check them"),
    "train": ("runs:train", "train a model on a data set"),
    "evaluate": ("runs:evaluate", "accuracy of a trained run on its test images"),
    "shift": ("experiments:shift", "accuracy of trained runs at every shift"),
    "heads": ("runs:heads", "where the heads of a self-attention network look, in pictures"),
    "prune": ("runs:prune", "remove a trained run's degenerate heads and train on"),
    "export": ("runs:export", "write a trained run's model as a model file"),
    "predict": ("pictures:predict", "what a trained model says of pictures"),
    "audit": ("audit:audit", "what a model makes of images that move"),
    "compare": ("compare:compare", "models over the same images, moved alike"),
    "mend": ("mend:mend", "change what a model loses shifts by, and audit it before and after"),
    "study": ("experiments:study", "train a grid of runs and compare them"),
    "reproduce": ("experiments:reproduce", "the table and the figure of Horn et al. (2021)"),
    "approximate": ("experiments:approximate", "how near random features come to softmax"),
    "bench": ("experiments:bench", "time and memory of the layers on this machine"),
}
HELP = """usage: teka COMMAND [options]

Attention that depends on where things are relative to each other: models, training and measurement.

commands:
{}

teka COMMAND --help shows the options of a command, with examples; teka --version the version."""
USAGE_ERROR = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the `teka` command with the words after `teka`, the process's own by default.

    Returns:
        Exit code: 0; 1 when an audit stayed below what it was held to, and for nothing else; 130 when interrupted; and
        2, with one line on standard error, for whatever else is in the way of an answer.
    """
    _open_output()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _run(given)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one has nothing left to stop
        sys.stderr.write("\ninterrupted\n")
        return INTERRUPTED
    except OSError as error:
        _close_output()
        where = f": {error.filename}" if error.filename else ""
        return _say(given, f"{error.strerror}{where}" if error.strerror else error)


def _run(given: list[str]) -> int:
    if not given or given[0] in ("-h", "--help"):
        lines = [f"  {name:<{max(map(len, COMMANDS))}}  {purpose}" for name, (_, purpose) in COMMANDS.items()]
        print(HELP.format("\n".join(lines)))
        return 0
    if given[0] == "--version":
        print(f"teka {__version__}")
        return 0
    name = given[0]
    if name not in COMMANDS:
        return _say([], unknown_name("command", name, COMMANDS))
    try:
        command = pkgutil.resolve_name(f"teka.cli.{COMMANDS[name][0]}")
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
    warnings.formatwarning = lambda message, *_: f"teka {name}: warning: {' '.join(str(message).split())}\n"
    try:
        return command.main(options, shlex.join(["teka", *given])) or 0
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
        return _say(given, "this is a mistake of teka's own; please report it with the lines above")
    finally:
        warnings.formatwarning = shown


def _say(given: Sequence[str], message: object) -> int:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{' '.join(['teka', *given[:1]])}: error: {' '.join(str(message).split())}\n")
    return USAGE_ERROR


def _open_output() -> None:
    """Make the output one that can be written to: not closed, and with a "?" for what the terminal does not have."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, io.StringIO())
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _close_output() -> None:
    """Let Python not try at its end to write what could not be written."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
