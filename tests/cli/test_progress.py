import io
import re

import pytest

from teka.cli import progress
from teka.cli.progress import ProgressDisplay


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_without_a_terminal_is_a_line_every_few_seconds(capsys, monkeypatch):
    seconds = iter([0.0, 1.0, 6.0, 8.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(seconds))
    with ProgressDisplay() as display:
        display.show("cells [0]", 1, 4)
        display.show("cells [0]", 2, 4)
        display.show("cells [0]", 3, 4)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert re.fullmatch(r"cells \[0\]: 2 of 4(, \d:\d\d:\d\d left)?\n", shown.err)


def test_short_command_prints_no_progress_without_a_terminal(capsys):
    with ProgressDisplay() as display:
        display.show("cells", 1, 2)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("no_color", ["", "1"])
def test_terminal_shows_a_colored_bar_unless_no_color_is_set(no_color, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", no_color)
    with ProgressDisplay() as display:
        display.show("cells [0]", 1, 2)
    shown = terminal.getvalue()
    assert "cells [0]" in shown
    assert "1/2" in shown
    colors = re.search(r"\x1b\[[0-9;]*(3[0-8]|9[0-7])m", shown)
    assert (colors is None) is bool(no_color)
