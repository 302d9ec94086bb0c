"""Commands in the pages next to the experiments."""

import re
import shlex
from pathlib import Path

import pytest

import reproduction
from reproduction.__main__ import make_reproduction_app

PAGES = sorted(Path(reproduction.__file__).parent.rglob("*.md"))


def documented_commands() -> list[str]:
    """Return every command of `python -m reproduction` without a placeholder."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES).replace("\\\n", " ")
    commands = re.findall(r"(?:^ {4}|^|\| `)python -m (reproduction [^`\n]*)", text, re.MULTILINE)
    return sorted({command for command in commands if "..." not in command})


@pytest.mark.parametrize("command", documented_commands())
def test_documented_commands_are_parsed(command):
    words = shlex.split(command, comments=True)[1:]
    make_reproduction_app().parse_args(words, print_error=False, exit_on_error=False)
