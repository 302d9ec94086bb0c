"""A child process that ends without a result is an error, however it ends."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from teka.cli import child
from tests.cli.child_commands import run

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(os.name != "posix", reason="the deeds use signals and fork")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    """Run a command in a child process. Return the exit code, the output and the errors."""
    monkeypatch.setattr(child, "GRACE_SECONDS", 1.0)

    def start(deed: str, code: int = 0) -> tuple[int, str, list[str]]:
        said: list[str] = []

        def say(message: str) -> int:
            said.append(message)
            return 2

        code = child.run_in_child(run, ["audit", deed, str(code)], say)
        captured = capfd.readouterr()
        assert captured.err == ""
        return code, captured.out, said

    return start


@pytest.mark.parametrize("code", [0, 1, 2, 141])
def test_a_result_is_handed_on(command, code: int):
    assert command("nothing", code) == (code, "the report\n", [])


@pytest.mark.parametrize("deed", ["exit", "fork"])
def test_code_that_exits_without_a_result_is_an_error(command, deed: str):
    code, _, said = command(deed)
    assert code == 2
    assert said == [
        "the model's code ended the process with exit code 0 before the result was complete"
    ]


@pytest.mark.parametrize(("deed", "name"), [("killed", "SIGKILL"), ("crash", "SIGSEGV")])
def test_a_signal_is_an_error(command, deed: str, name: str):
    assert command(deed) == (
        2,
        "",
        [f"the process was ended by {name} before the result was complete"],
    )


@pytest.mark.parametrize("deed", ["sleep", "loop"])
def test_a_call_that_outlasts_its_budget_is_ended(command, deed: str):
    began = time.monotonic()
    code, printed, (said,) = command(deed)
    assert (code, printed) == (2, "")
    assert said.startswith("the model did not answer within --budget 0.1 and 1 more seconds")
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("deed", ["exit handler", "exit in a handler", "thread", "no output"])
@pytest.mark.parametrize("code", [0, 1])
def test_what_code_leaves_behind_does_not_change_a_complete_result(command, deed: str, code: int):
    assert command(deed, code) == (code, "the report\n", [])


SCRIPT = """
import signal, sys
from tests.cli.child_commands import run
from teka.cli.child import run_in_child

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job has none
    sys.exit(run_in_child(run, ["audit", "interrupt", "0"], lambda message: 2))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_parent_ends_the_child_too(tmp_path: Path, number: signal.Signals):
    (tmp_path / "script.py").write_text(SCRIPT)
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert process.stdout is not None
    timer = threading.Timer(60, process.kill)
    timer.start()
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(number)
    # The pipe closes once the child has ended as well.
    rest = process.stdout.read()
    timer.cancel()
    assert rest == ("saved\n" if number == signal.SIGINT else "")
    assert process.wait() == (130 if number == signal.SIGINT else -signal.SIGTERM)
