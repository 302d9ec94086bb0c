import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
from cyclopts import Parameter, Token

from teka.cli import main, make_app
from teka.cli.app import parse_option_value


@dataclass(frozen=True)
class Options:
    """Options of all types.

    Args:
        whole: A number.
        text: A string.
        pair: Two numbers.
        numbers: Some numbers.
        size: One side or two.
        flag: A flag.
    """

    whole: int = 3
    text: str | None = "a"
    pair: tuple[float, float] = (0.5, 0.25)
    numbers: Sequence[int] | None = None
    size: int | tuple[int, int] | str | None = None
    flag: bool = False


@pytest.fixture
def parse():
    """Return a function that parses words into options, or returns the exit code of an error."""

    def parse_words(*words: str):
        read = []

        def command(*, options: Annotated[Options, Parameter(name="*")] = Options()) -> None:
            """Read the options."""
            read.append(options)

        app = make_app()
        app.command(command)
        code = main(["command", *words], app)
        return read[0] if code == 0 else code

    return parse_words


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        ([], "whole", 3),
        (["--whole", "-2"], "whole", -2),
        (["--whole", "1", "--whole", "2"], "whole", 2),
        (["--text", "5"], "text", "5"),
        (["--text", "true"], "text", "true"),
        (["--text", "a-b_c"], "text", "a-b_c"),
        (["--text=--x"], "text", "--x"),
        (["--pair", "1", "1e-3"], "pair", (1.0, 0.001)),
        (["--numbers", "1", "2"], "numbers", (1, 2)),
        (["--numbers", "1", "--numbers", "2"], "numbers", (1, 2)),
        (["--numbers", "[1,2]"], "numbers", (1, 2)),
        (["--size", "8"], "size", 8),
        (["--size", "[8,9]"], "size", (8, 9)),
        (["--size", "ideal"], "size", "ideal"),
        (["--flag"], "flag", True),
        (["--flag=false"], "flag", False),
    ],
)
def test_words_are_converted_by_the_type_of_the_option(words, field, value, parse):
    options = parse(*words)
    assert getattr(options, field) == value
    assert type(getattr(options, field)) is type(value)


def test_the_word_none_is_none_unless_the_option_is_a_string():
    token = Token(keyword="--blur", value="None")
    for kind in (int | str | None, int | str, int):  # cyclopts 4 omits None
        assert parse_option_value(kind, [token]) is None
    assert parse_option_value(str, [token]) == "None"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--whole", "1.5"], "--whole must be a whole number, got 1.5."),
        (["--whole", "true"], "--whole must be a whole number, got True."),
        (["--whole", "x"], "--whole must be a whole number, got 'x'."),
        (["--whole"], "--whole needs a value"),
        (["--whole="], "--whole must be a value, got ''."),
        (["--text", ""], "--text must be a value, got ''."),
        (["--pair", "1"], "--pair needs 2 values"),
        (["--pair", "1", "x"], "--pair[1] must be a number, got 'x'."),
        (["--numbers"], "--numbers needs a value"),
        (["--numbers", "1", "1.5"], "--numbers[1] must be a whole number, got 1.5."),
        (["--flag", "3"], "'3' is not expected here"),
        (["--flag=3"], 'Invalid value for --flag: unable to convert "3" into bool.'),
        (["--whole", "[" * 100_000], "--whole must be a whole number, got "),
    ],
)
def test_invalid_value_is_an_error_with_the_name_of_the_option(words, message, parse, capsys):
    assert parse(*words) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"teka command: error: {message}")
    assert error.count("\n") == 1


ROOT = Path(__file__).parents[2]
FOLDERS = ROOT / "docs", ROOT / "reproduction"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PAGES += [page for folder in FOLDERS for page in sorted(folder.rglob("*.md"))]


def documented_commands() -> list[str]:
    """Return every command line in a code block of the documentation."""
    lines = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        fenced = re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL)
        indented = re.findall(r"^ {4}.*$", text, re.MULTILINE)
        for code in (*fenced, *indented):
            pattern = r"^ *(?:torchrun .*--no-python )?(teka [^\n]*)$"
            found = re.findall(pattern, code, re.MULTILINE)
            # Options that a shell script fills in are not known here.
            lines += [line for line in found if "$@" not in line and "${options[@]}" not in line]
    return sorted(set(lines))


@pytest.mark.parametrize("line", documented_commands())
def test_documented_commands_are_parsed(line):
    words = shlex.split(line, comments=True)[1:]
    function, _, _ = make_app().parse_args(words, print_error=False, exit_on_error=False)
    assert function.__module__.startswith("teka.cli.")
