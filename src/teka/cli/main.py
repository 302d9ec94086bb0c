"""Entry point of the program `teka`: run a command and report its errors."""

import contextlib
import io
import logging
import os
import shlex
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from functools import partial

from cyclopts import App
from cyclopts.exceptions import CycloptsError

from teka.cli import child
from teka.cli.app import OPTION_NAMES, describe_parser_error, make_app
from teka.errors import first_line_of_error, is_out_of_memory, to_one_line

MAX_ERROR_LENGTH = 2000
ISOLATED_COMMANDS = ("audit", "compare", "fix", "mend")  # they run the code of a model


def main(arguments: Sequence[str] | None = None, app: App | None = None) -> int:
    """Run a command of the program `teka`, and return its exit code.

    Commands that run the code of a model start a child process, so that this code cannot silently
    end the command. If `arguments` are passed, everything runs in this process.

    Args:
        arguments: Command-line arguments. The default is `sys.argv[1:]`.
        app: Parser with the commands. The default is `make_app()`.

    Returns:
        - 0: success
        - 1: an audit did not reach its threshold
        - 2: any other error, with one line on standard error
        - 130: interrupted by Ctrl-C
        - 141: the output was closed, for example by `head`
    """
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None and app is None and argv and argv[0] in ISOLATED_COMMANDS:
        return child.run_in_child(
            run_in_this_process, argv, partial(print_error, f"teka {argv[0]}")
        )
    return run_in_this_process(argv, app)


def run_in_this_process(arguments: list[str], app: App | None = None) -> int:
    """Run a command in this process, report its errors, and return its exit code."""
    app = app or make_app()
    command = arguments[0] if arguments and arguments[0] in app else ""
    program = f"{app.name[0]} {command}".rstrip()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # the stream is closed
            setattr(sys, name, io.StringIO())
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # the terminal may lack characters
    try:
        code = _parse_and_run(arguments, app, command, program)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        if child.is_interrupt_by_model():
            return print_error(program, "the model's code raised KeyboardInterrupt")
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing is left to interrupt
        return child.print_interrupted()
    except BrokenPipeError:
        _discard_closed_output()
        return child.BROKEN_PIPE
    except OSError as error:
        _discard_closed_output()
        file = f": {error.filename}" if error.filename else ""
        return print_error(program, f"{error.strerror}{file}" if error.strerror else error)
    except BaseException as error:
        return print_error(program, _format_error_message(error, program))


def _parse_and_run(arguments: list[str], app: App, command: str, program: str) -> int:
    """Parse the arguments, run the command, and return its exit code.

    While the command runs, each Python warning is printed on one line.
    """
    format_warning = warnings.formatwarning
    warnings.formatwarning = lambda message, *_: (
        f"{program}: warning: {to_one_line(message, MAX_ERROR_LENGTH)}\n"
    )
    logging.disable(logging.INFO)  # users do not need the messages of Lightning
    try:
        if command:
            app[command].help = None  # its help shows the docstring instead of the summary
        function, bound, unparsed = app.parse_args(
            arguments, print_error=False, exit_on_error=False
        )
        record = {}
        if "command" in unparsed:
            record = {"command": f"{app.name[0]} {shlex.join(arguments)}"}
        return function(*bound.args, **bound.kwargs, **record) or 0
    finally:
        logging.disable(logging.NOTSET)
        warnings.formatwarning = format_warning


def _format_error_message(error: BaseException, program: str) -> str:
    """Return the message to print for an error. For a bug in teka, also print the traceback."""
    match error:
        case CycloptsError():
            return describe_parser_error(error, program)
        case ModuleNotFoundError():
            return f"{error.name} is not installed; pip install 'teka[train,report]'"
        case ImportError(__cause__=ImportError() as cause):  # of the parser, which says less
            return _format_error_message(cause, program)
        case ImportError() | ValueError() | FloatingPointError():
            argument, _, rest = str(error).partition(" ")
            return f"{OPTION_NAMES.get(argument, argument)} {rest}".rstrip()
        case Exception() if is_out_of_memory(error):
            return str(error) or "out of memory"
        case Exception():
            traceback.print_exception(error)
            return "internal error; please report it with the traceback above"
        case SystemExit():  # no command raises it, but the code of a model may
            return f"the model's code ended the program with sys.exit({error.code!r})"
    return f"the model's code raised {type(error).__name__}: {first_line_of_error(error)}"


def print_error(program: str, message: object) -> int:
    """Print an error as one line on standard error, and return the exit code 2."""
    try:
        sys.stderr.write(f"{program}: error: {to_one_line(message, MAX_ERROR_LENGTH)}\n")
    except OSError:  # the program that reads the errors has ended
        _discard_closed_output()
    return child.USAGE_ERROR


def _discard_closed_output() -> None:
    """Redirect closed output streams to the null device, so that Python can flush them at exit.

    Otherwise, Python would print another error when it exits.
    """
    for number, stream in enumerate((sys.stdout, sys.stderr), start=1):
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), number)
