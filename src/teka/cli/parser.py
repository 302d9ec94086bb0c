"""The parser of every command: typed options, help with examples, and errors of one line."""

import argparse
import itertools
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import jsonargparse


class Parser(jsonargparse.ArgumentParser):
    """A jsonargparse parser with dashes in its options, and errors of one line and exit code 2.

    Args:
        prog: The command.
        description: What it does, in a sentence.
        examples: Command lines to show below the help.
    """

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
        """Say what is wrong and leave."""
        fail(self.prog, message)

    def format_help(self, formatter: argparse.HelpFormatter | None = None) -> str:
        """The help, with --data-dir for the field data_dir."""
        return re.sub(r"--[a-z][a-z_]+", lambda option: option[0].replace("_", "-"), super().format_help(formatter))


class _Formatter(jsonargparse.DefaultHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of the examples."""


def with_underscores(arguments: Sequence[str]) -> list[str]:
    """The command line with --data_dir for --data-dir, as the fields are named."""
    return [
        re.sub(r"^--[a-z][a-z-]+", lambda option: "--" + option[0][2:].replace("-", "_"), argument)
        for argument in arguments
    ]


def fail(prog: str, message: object) -> NoReturn:
    """Write an error as one line on standard error and exit with 2."""
    sys.stderr.write(f"{prog}: error: {' '.join(str(message).split())}\n")
    sys.exit(2)
