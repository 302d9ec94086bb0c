import os
import subprocess
import sys

import pytest

from teka import __version__
from teka.cli import main, runs
from teka.cli.app import COMMANDS, CommandLine, make_app


def test_main_without_arguments_lists_the_commands(capsys):
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {command} " in shown for command in COMMANDS)
    assert "mend" not in shown


def test_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"teka {__version__}\n"


def test_help_imports_neither_torch_nor_lightning():
    script = (
        "import sys; from teka.cli import main; main(['--help']);"
        "sys.exit('torch' in sys.modules or 'lightning' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_help_of_a_command_imports_no_slow_package():
    script = """import sys
from teka.cli import main
from teka.cli.app import COMMANDS
for command in COMMANDS:
    assert main([command, "--help"]) == 0
slow = "lightning", "matplotlib", "torchvision", "torchmetrics", "transformers", "timm"
print("imported:", *(name for name in slow if name in sys.modules))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.endswith("imported:\n")


def test_unknown_command_is_an_error_with_the_closest_name(fails):
    line = fails("trian")
    assert line.startswith("teka: error: ")
    assert 'Did you mean "train"?' in line


def test_abbreviated_option_is_an_error_with_the_closest_name(fails):
    assert fails("train", "--learning-rat", "0.1") == (
        "teka train: error: Unknown option: --learning-rat. Did you mean --learning-rate?\n"
    )


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("--out", "See teka audit --help."),  # --output is another kind of option
        ("--cpu", "See teka audit --help."),
        ("--batch", "Did you mean --batch-size?"),
        ("--dataset=digits", "Did you mean --data?"),
        ("--model", "Did you mean MODEL?"),
    ],
)
def test_suggestion_for_an_unknown_option_is_similar_to_it(fails, option: str, hint: str):
    name = option.partition("=")[0]
    line = fails("audit", "digits", "--data", "digits", option)
    assert line == f"teka audit: error: Unknown option: {name}. {hint}\n"


def test_error_names_an_argument_as_its_option_is_named(fails):
    assert fails("audit", "digits", "--data", "digits", "--mean", "0.5") == (
        "teka audit: error: std must be given together with mean, got None.\n"
    )


def test_background_has_one_value_for_each_channel(fails):
    words = ["audit", "digits", "--data", "digits", "--mode", "zero", "--background", "0.1", "0.2"]
    message = "background must be one value, or one for each of the 1 channels, got (0.1, 0.2)."
    assert message in fails(*words)


def test_missing_argument_is_an_error_with_its_name(fails):
    assert fails("audit") == "teka audit: error: MODEL is required; see teka audit --help\n"
    assert fails("audit", "digits") == (
        "teka audit: error: --data is required; see teka audit --help\n"
    )


def test_help_shows_the_purpose_and_the_default_of_an_option(capsys):
    assert main(["shift", "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Usage: teka shift [OPTIONS] RUNS\n")
    assert "[default: 4]" in shown
    assert "None" not in shown


def test_python_m_teka_runs_the_command():
    run = subprocess.run(
        [sys.executable, "-m", "teka", "--version"], capture_output=True, text=True, check=True
    )
    assert run.stdout == f"teka {__version__}\n"


@pytest.mark.skipif(os.name != "posix", reason="Windows has no SIGPIPE")
@pytest.mark.parametrize("words", [["--help"], ["--version"]])
def test_closed_output_pipe_ends_the_command_quietly(words):
    reader, writer = os.pipe()
    os.close(reader)
    run = subprocess.run(
        [sys.executable, "-m", "teka", *words], stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert (run.returncode, run.stderr) == (141, b"")


@pytest.mark.skipif(os.name != "posix", reason="Windows has no SIGPIPE")
def test_error_with_closed_standard_error_has_exit_code_2():
    reader, writer = os.pipe()
    os.close(reader)
    run = subprocess.run([sys.executable, "-m", "teka", "trian"], stderr=writer, check=False)
    os.close(writer)
    assert run.returncode == 2


def test_model_that_ends_the_process_is_an_error(tmp_path, monkeypatch, capfd):
    (tmp_path / "model.py").write_text(
        "import os\n\n\ndef make():\n    return lambda images: os._exit(0)\n"
    )
    options = ["--data", "digits", "--images", "4", "--max-shift", "1", "--fail-under", "0"]
    monkeypatch.setattr(sys, "argv", ["teka", "audit", f"{tmp_path}/model.py:make", *options])
    assert main() == 2  # in a child process
    assert capfd.readouterr().err == (
        "teka audit: error: the model's code ended the process with exit code 0 before the result "
        "was complete\n"
    )


class UnusualError(BaseException):
    pass


@pytest.mark.parametrize(
    "error", [UnusualError("of\ntwo \x1b[31mlines"), SystemExit(0), GeneratorExit()]
)
def test_any_exception_of_a_model_is_an_error_of_one_line(error, monkeypatch, fails):
    def raise_error():
        raise error

    monkeypatch.setattr(runs, "evaluate", raise_error)
    line = fails("evaluate")
    assert line.startswith("teka evaluate: error: the model's code ")
    assert "\x1b" not in line


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_examples_and_describes_every_option(command, capsys):
    assert main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"\n teka {command}" in shown
    assert not [word for word in shown.split() if word.startswith("--") and "_" in word]
    arguments = make_app()[command].assemble_argument_collection(parse_docstring=True)
    shown_arguments = arguments.filter_by(show=True, parse=True)
    assert shown_arguments
    assert [argument.name for argument in shown_arguments if not argument.parameter.help] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_unknown_option_is_an_error_of_one_line(command, fails):
    assert "--no-such-option" in fails(command, "--no-such-option", "3")


def test_interrupt_ends_with_exit_code_130(monkeypatch, capsys):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "evaluate", interrupt)
    assert main(["evaluate"]) == 130


def test_other_packages_can_add_commands(capsys, fails):
    def measure(run: str, /, *, radius: float = 1.0, command: CommandLine) -> int:
        """Measure a run."""
        print(run, radius, command)
        return 1

    app = make_app("python -m lab")
    app.command(measure)
    assert main(["measure", "a-b", "--radius", "2"], app) == 1
    assert capsys.readouterr().out == "a-b 2.0 python -m lab measure a-b --radius 2\n"
    assert main(["measure", "a", "--radius", "x"], app) == 2
    assert capsys.readouterr().err == (
        "python -m lab measure: error: --radius must be a number, got 'x'.\n"
    )
    assert main(["train", "--help"], app) == 0


@pytest.mark.parametrize("package", ["cyclopts", "lightning"])
def test_missing_package_is_an_error_with_the_install_command(package):
    script = (
        f"import sys; sys.modules[{package!r}] = None; sys.argv = ['teka', 'train'];"
        "from teka.__main__ import main; sys.exit(main())"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 2
    assert package in run.stderr
    assert "pip install 'teka[train" in run.stderr
    assert run.stderr.count("\n") == 1


def test_interrupt_during_the_imports_is_one_line():
    script = """
import sys

class Interrupt:
    def find_spec(self, name, *rest):
        if name == "cyclopts":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
from teka.__main__ import main
sys.exit(main())
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (130, "\ninterrupted\n")
