import io
import re

import pytest

from teka.cli.parser import progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_where_there_is_no_terminal_a_step_is_a_line_if_lines_are_asked_for_and_nothing_else(
    capsys,
):
    for lines in (False, True):
        with progress_bar(lines=lines) as show:
            show("cells", 0, 2, "")
            show("cells", 1, 2, "softmax [0]")
        shown = capsys.readouterr()
        assert shown.err == ""
        assert shown.out == ("cells 0/2\ncells 1/2 softmax [0]\n" if lines else "")


@pytest.mark.parametrize("no_color", ["", "1"])
def test_a_terminal_shows_a_bar_in_colour_unless_no_color_is_set(no_color, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", no_color)
    with progress_bar() as show:
        show("cells", 1, 2, "softmax [0]")
    shown = terminal.getvalue()
    assert "cells" in shown
    assert "1/2" in shown
    colours = re.search(r"\x1b\[[0-9;]*(3[0-8]|9[0-7])m", shown)
    assert (colours is None) is bool(no_color)
