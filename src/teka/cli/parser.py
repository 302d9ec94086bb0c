"""What a command is and its parser: typed options, help with examples, errors of one line; and its progress."""

import argparse
import contextlib
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jsonargparse

from teka.errors import did_you_mean, printable


class Parser(jsonargparse.ArgumentParser):
    """A jsonargparse parser with dashes in its options, and errors of one line and exit code 2."""

    def __init__(self, prog: str, description: str, examples: str = "") -> None:
        epilog = f"examples:\n{examples}" if examples else None
        options = {"formatter_class": _Formatter, "allow_abbrev": False}
        super().__init__(prog=prog, description=description, epilog=epilog, **options)

    def parse_args(self, *arguments: Any, **options: Any) -> Any:
        """Read the command line, in which --data-dir is the field data_dir, and an empty word is no value."""
        dashes = re.compile(r"(?<=^--)[a-z][a-z-]+")
        words = [
            dashes.sub(lambda option: option[0].replace("-", "_"), word) for word in arguments[0]
        ]
        for before, word in itertools.pairwise(["", *words]):
            if not word or re.fullmatch(r"--\w+=", word):
                self.error(
                    f"{(word or before).rstrip('=') or 'the first argument'} is '', expected a value"
                )
        return super().parse_args(words, *arguments[1:], **options)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if unknown := re.match(r"unrecognized arguments: (--\w+)", message, flags=re.IGNORECASE):
            hint = (
                did_you_mean(unknown[1], self._option_string_actions)
                or f"; {self.prog} --help lists them"
            )
            message = f"{unknown[1]} is no option of this command{hint}".replace("_", "-")
        elif missing := re.match(r"the following arguments are required: (.+)", message):
            named = {
                one.dest: one.option_strings[-1:] or [one.metavar or one.dest]
                for one in self._actions
            }
            given = " and ".join(
                str(named.get(dest, [dest])[0]).replace("_", "-") for dest in missing[1].split(", ")
            )
            message = f"nothing is given for {given}; {self.prog} --help shows examples"
        sys.stderr.write(f"{self.prog}: error: {' '.join(message.split())}\n")
        sys.exit(2)

    def format_help(self, formatter: argparse.HelpFormatter | None = None) -> str:
        """The help, with --data-dir for the field data_dir."""
        return re.sub(
            r"--[a-z][a-z_]+",
            lambda option: option[0].replace("_", "-"),
            super().format_help(formatter),
        )


class _Formatter(jsonargparse.DefaultHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of examples, and says of an option what it is for and its default, if that says more."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        says_more = action.option_strings and action.default not in (
            None,
            False,
            [],
            argparse.SUPPRESS,
        )
        return f"{text} (default: %(default)s)" if says_more and "default" not in text else text

    def _format_usage(
        self, usage: str | None, actions: Iterable[argparse.Action], *others: Any, **more: Any
    ) -> str:
        places = " ".join(
            self._format_args(one, one.dest) for one in actions if not one.option_strings
        )
        return f"usage: {self._prog}{' ' if places else ''}{places} [options]\n\n"


class Option:
    """A row of a command's table: an argument, or with dashes an option; one of type bool is a flag."""

    def __init__(self, name: str, kind: Any, help: str, default: Any = None, **shape: Any) -> None:
        given = {"action": "store_true"} if kind is bool else {"type": kind, **shape}
        self.add = {"help": help, **given, **({} if default is None else {"default": default})}
        self.name = name

    def __call__(self, parser: Parser) -> None:
        parser.add_argument(self.name, **self.add)


def fields_of(*sources: Callable, skip: Sequence[str] = ()) -> Callable[[Parser], None]:
    """Rows for the arguments of classes and functions, but for some, in the words of their docstrings."""

    def add(parser: Parser) -> None:
        for one in sources:
            if isinstance(one, type):
                parser.add_class_arguments(one, skip=set(skip))
            else:
                parser.add_function_arguments(one, skip=set(skip))

    return add


@dataclass(frozen=True)
class Command:
    """A command: its function, whose docstring is what its help says, its options and examples."""

    main: Callable[[argparse.Namespace, str], int | None]
    options: Sequence[Callable[[Parser], object]]
    examples: Sequence[str]
    parser: type[Parser]

    def make_parser(self) -> Parser:
        """The parser with its options."""
        name, examples = (
            f"teka {self.main.__name__}",
            "".join(f"  {line}\n" for line in self.examples),
        )
        parser = self.parser(name, " ".join((self.main.__doc__ or "").split()), examples)
        for add in self.options:
            add(parser)
        return parser


def command(
    *options: Callable[[Parser], object], examples: Sequence[str], parser: type[Parser] = Parser
) -> Callable[[Callable[[argparse.Namespace, str], int | None]], Command]:
    """Make a command of a function that takes its options and the line that was given."""
    return lambda main: Command(main, options, examples, parser)


RUN = Option("run", str, "Folder of a finished run.")
DATA_DIR = Option("--data_dir", str | None, "Folder with the data set's files, if it has moved.")
Show = Callable[[str, int, int | None, str], None]


@contextlib.contextmanager
def progress_bar(*, lines: bool = False) -> Iterator[Show]:
    """A bar at standard error for as long as the block runs, and what moves it: a stage, steps of all, and a note.

    It appears with the first step, so that none stands above an error of what was asked for. Where there is no terminal
    nothing is written, or a line for each step at standard output: standard error is for what is wrong.
    """
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True, markup=False, highlight=False)
    stage, note = (
        progress.TextColumn(f"{{task.{field}}}", markup=False)
        for field in ("description", "fields[note]")
    )
    times = progress.TimeElapsedColumn(), progress.TimeRemainingColumn()
    columns = stage, progress.BarColumn(), progress.MofNCompleteColumn(), *times, note
    stages: list[str] = []
    with progress.Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:

        def show(stage: str, done: int, total: int | None, text: str) -> None:
            stage, text = printable(stage), printable(text)
            if lines and not console.is_terminal:
                print(f"{stage} {done}/{total} {text}".rstrip(), flush=True)
            if stages[-1:] != [stage]:  # whose time counts from here
                for task in bar.task_ids:
                    bar.remove_task(task)
                stages.append(stage)
                bar.add_task(stage, completed=done, total=total, note=text)
            bar.update(bar.task_ids[-1], completed=done, total=total, note=text)

        yield show


def old_command(path: str) -> Any:
    """Return a command for `App.command` that runs an object made by `command`."""
    import pkgutil
    from typing import Annotated

    from cyclopts import Parameter

    from teka.cli.app import CommandLine

    def run(
        *words: Annotated[
            str, Parameter(allow_leading_hyphen=True, converter=lambda _, t: t[0].value)
        ],
        command: CommandLine,
    ) -> int:
        old: Command = pkgutil.resolve_name(path)
        try:
            options = old.make_parser().parse_args(list(words))
        except SystemExit as error:  # of the parser, which has printed help or an error
            return int(str(error.code))
        return old.main(options, command) or 0

    return run
