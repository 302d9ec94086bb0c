"""What a command is, and the parser of every one: typed options, help with examples, and errors of one line."""

import argparse
import itertools
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jsonargparse


class Parser(jsonargparse.ArgumentParser):
    """A jsonargparse parser with dashes in its options, and errors of one line and exit code 2."""

    def __init__(self, prog: str, description: str, examples: str = "") -> None:
        epilog = f"examples:\n{examples}" if examples else None
        super().__init__(prog=prog, description=description, epilog=epilog, formatter_class=_Formatter)

    def parse_args(self, *arguments: Any, **options: Any) -> Any:
        """Read the command line, in which an empty word is no value."""
        for before, word in itertools.pairwise(["", *arguments[0]]):
            if not word or re.fullmatch(r"--\w+=", word):
                self.error(f"{(word or before).rstrip('=') or 'the first argument'} is '', expected a value")
        return super().parse_args(*arguments, **options)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Write what is wrong as one line on standard error and exit with 2."""
        sys.stderr.write(f"{self.prog}: error: {' '.join(message.split())}\n")
        sys.exit(2)

    def format_help(self, formatter: argparse.HelpFormatter | None = None) -> str:
        """The help, with --data-dir for the field data_dir."""
        return re.sub(r"--[a-z][a-z_]+", lambda option: option[0].replace("_", "-"), super().format_help(formatter))


class _Formatter(jsonargparse.DefaultHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of the examples."""


@dataclass(frozen=True)
class Option:
    """A row of a command's table: an argument, or with dashes an option; one of type bool is a flag."""

    name: str
    type: Any
    help: str
    default: Any = None
    nargs: int | str | None = None
    metavar: str | tuple[str, ...] | None = None
    required: bool = False

    def __call__(self, parser: Parser) -> None:
        """Add it to a command's parser."""
        if self.type is bool:
            parser.add_argument(self.name, action="store_true", help=self.help)
            return
        given = {"default": self.default, "nargs": self.nargs, "metavar": self.metavar, "required": self.required}
        shape = {key: value for key, value in given.items() if value is not None and value is not False}
        parser.add_argument(self.name, type=self.type, help=self.help, **shape)


def fields_of(*classes: type) -> Callable[[Parser], None]:
    """Rows for the arguments of classes, in the words of their docstrings."""

    def add(parser: Parser) -> None:
        for one in classes:
            parser.add_class_arguments(one)

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
        name, examples = f"teka {self.main.__name__}", "".join(f"  {line}\n" for line in self.examples)
        parser = self.parser(name, " ".join((self.main.__doc__ or "").split()), examples)
        for add in self.options:
            add(parser)
        return parser


def command(
    *options: Callable[[Parser], object], examples: Sequence[str], parser: type[Parser] = Parser
) -> Callable[[Callable[[argparse.Namespace, str], int | None]], Command]:
    """Make a command of a function that takes its options and the line that was given."""
    return lambda main: Command(main, options, examples, parser)


def with_underscores(arguments: Sequence[str]) -> list[str]:
    """The command line with --data_dir for --data-dir, as the fields are named."""
    return [
        re.sub(r"^--[a-z][a-z-]+", lambda option: "--" + option[0][2:].replace("-", "_"), argument)
        for argument in arguments
    ]
