import io
import re

import pytest
from tests.training.interrupt import InterruptAt

from teka.training import train
from teka.training.progress import COLUMNS, _number, _time


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_where_there_is_no_terminal_there_is_a_heading_and_a_plain_row_for_each_epoch(tiny, tmp_path, capsys):
    train(tiny, tmp_path / "run")
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert shown.isascii()
    assert not set(shown) & {"\r", "\x1b"}
    assert lines[1].split() == [column[1] for column in COLUMNS]
    assert [line.split()[0] for line in lines[2:]] == ["1/2", "2/2"]
    cells = lines[3].split()
    assert len(cells) == len(COLUMNS)
    assert cells[-1] == "0:00"
    assert "-" not in cells
    assert max(map(len, lines)) <= 80


def test_what_was_not_measured_or_held_out_is_a_dash(tiny, tmp_path, capsys):
    run = tiny.replace(epochs=1, validation_size=0, schedule="constant", warmup=0.0)
    train(run, tmp_path / "run", throughput=False)
    assert capsys.readouterr().out.splitlines()[-1].split()[3:9] == ["-", "-", "2.0e-3", "-", "-", "-"]


def test_a_resumed_run_goes_on_with_the_next_row(tiny, tmp_path, capsys):
    with pytest.raises(KeyboardInterrupt):
        train(tiny, tmp_path / "run", callbacks=[InterruptAt(4)])
    capsys.readouterr()
    train(tiny, tmp_path / "run", resume=True)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]] == ["2/2"]


def test_on_a_terminal_there_is_a_bar_that_goes_away(tiny, tmp_path, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    train(tiny.replace(epochs=1), tmp_path / "run")
    shown = terminal.getvalue()
    assert "0/3" in shown
    last = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.splitlines()[-1].rsplit("\r")[-1])
    assert last.split()[0] == "1/1"


def test_without_a_progress_bar_nothing_is_printed(tiny, tmp_path, capsys):
    train(tiny.replace(epochs=1), tmp_path / "run", progress_bar=False)
    assert capsys.readouterr().out == ""


def test_numbers_and_times_fit_their_columns():
    numbers = {2.30259: "2.302", 45.678: "45.67", 123456.7: "123457", 0.000123: "1.2e-4", 0.0: "0.000"}
    assert {number: _number(number) for number in numbers} == numbers
    times = {0.4: "0:00", 59.6: "1:00", 3599.0: "59:59", 35999.0: "9:59:59", 90000.0: "25 h"}
    assert {seconds: _time(seconds) for seconds in times} == times
