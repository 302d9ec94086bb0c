import dataclasses
import io
import os
import subprocess
import sys

import pytest

from teka import __version__
from teka.cli import COMMANDS, main, runs
from teka.cli.parser import Parser


def test_without_a_command_the_commands_are_listed(capsys):
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(command in shown for command in COMMANDS)


def test_the_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"teka {__version__}\n"


def test_an_unknown_command_is_an_error_that_names_the_nearest(fails):
    assert "Did you mean 'train'" in fails("trian")


def test_an_unknown_option_is_an_error_that_names_the_nearest_and_no_option_is_cut_short(fails):
    assert fails("train", "--learning-rat", "0.1").endswith(
        "teka train: error: --learning-rat is no option of this command; did you mean '--learning-rate'?\n"
    )


def test_what_is_lacking_is_named_as_it_is_typed(fails):
    assert fails("audit").endswith(
        "teka audit: error: nothing is given for MODEL and --data; teka audit --help shows examples\n"
    )


def test_help_says_what_an_option_is_for_and_no_types(capsys):
    with pytest.raises(SystemExit):
        main(["shift", "--help"])
    shown = capsys.readouterr().out
    assert shown.startswith("usage: teka shift runs [runs ...] [options]\n")
    assert "(default: 4)" in shown
    assert "type:" not in shown
    assert "null" not in shown


def test_python_runs_the_package_as_the_command():
    run = subprocess.run(
        [sys.executable, "-m", "teka", "--version"], capture_output=True, text=True, check=True
    )
    assert run.stdout == f"teka {__version__}\n"


@pytest.mark.skipif(os.name != "posix", reason="Windows has no SIGPIPE")
def test_a_reader_that_is_gone_ends_the_command_quietly():
    reader, writer = os.pipe()
    os.close(reader)
    run = subprocess.run(
        [sys.executable, "-m", "teka", "--help"], stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert (run.returncode, run.stderr) == (141, b"")


def test_a_model_that_ends_the_process_does_not_pass(tmp_path, monkeypatch, capfd):
    (tmp_path / "model.py").write_text(
        "import os\n\n\ndef make():\n    return lambda images: os._exit(0)\n"
    )
    words = f"audit {tmp_path}/model.py:make --data digits --images 4 --max-shift 1 --fail-under 0".split()
    monkeypatch.setattr(sys, "argv", ["teka", *words])
    assert main() == 2  # which starts a process for the model
    assert capfd.readouterr().err == (
        "teka audit: error: the model's code ended the process with exit code 0 before the result was complete\n"
    )


class Strange(BaseException):
    pass


@pytest.mark.parametrize(
    "error", [Strange("of\ntwo \x1b[31mlines"), SystemExit(0), GeneratorExit()]
)
def test_whatever_a_model_raises_is_one_line(error, monkeypatch, fails):
    def raising(options, command):
        raise error

    monkeypatch.setattr(runs, "train", dataclasses.replace(runs.train, main=raising))
    line = fails("train")
    assert line.startswith("teka train: error: the model's code ")
    assert "\x1b" not in line


@pytest.mark.parametrize(
    "change", [lambda: sys.stdout.close(), lambda: setattr(sys, "stdout", None)]
)
@pytest.mark.parametrize("code", [0, 1])
def test_output_that_a_model_has_taken_away_is_an_error(change, code, monkeypatch, capsys):
    def silenced(options, command):
        change()
        return code

    monkeypatch.setattr(runs, "train", dataclasses.replace(runs.train, main=silenced))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", io.StringIO())
        assert main(["train"]) == 2
    assert (
        capsys.readouterr().err
        == "teka train: error: the model's code closed or replaced standard output\n"
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_examples_and_options_with_dashes(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert f"examples:\n  teka {command}" in shown
    assert "_SIZE" in shown or "--out" in shown or "--data-dir" in shown
    assert not [word for word in shown.split() if word.startswith("--") and "_" in word]


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_option_is_one_line_and_exit_code_2(command, fails):
    assert "--no-such-option" in fails(command, "--no-such-option", "3").replace("_", "-")


def test_an_interrupt_ends_with_the_code_that_shells_use(monkeypatch, capsys):
    def interrupted(options, command):
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "train", dataclasses.replace(runs.train, main=interrupted))
    assert main(["train"]) == 130


def test_only_the_names_of_options_get_underscores():
    parser = Parser("teka", "")
    for name in ("--data_dir", "--out_file", "-n", "run"):
        parser.add_argument(name, type=str)
    read = parser.parse_args(["--data-dir", "a-b", "--out-file=x-y", "-n", "c-d", "run-1"])
    assert (read.data_dir, read.out_file, read.n, read.run) == ("a-b", "x-y", "c-d", "run-1")
