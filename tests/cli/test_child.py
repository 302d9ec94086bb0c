"""Commands in a child process, where every end without a result is an error."""

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
pytestmark = pytest.mark.skipif(os.name != "posix", reason="the actions use signals and fork")


@pytest.fixture
def run_command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    """Return a function that runs an action and returns exit code, output and errors."""
    monkeypatch.setattr(child, "GRACE_SECONDS", 1.0)

    def run_action(action: str, code: int = 0) -> tuple[int, str, list[str]]:
        errors: list[str] = []

        def record_error(message: str) -> int:
            errors.append(message)
            return 2

        code = child.run_in_child(run, ["audit", action, str(code)], record_error)
        captured = capfd.readouterr()
        assert captured.err == ""
        return code, captured.out, errors

    return run_action


@pytest.mark.parametrize("code", [0, 1, 2, 141])
def test_run_in_child_returns_code_and_output(run_command, code: int):
    assert run_command("nothing", code) == (code, "the report\n", [])


@pytest.mark.parametrize("action", ["exit", "fork"])
def test_exit_without_a_result_is_an_error(run_command, action: str):
    code, _, errors = run_command(action)
    assert code == 2
    assert errors == [
        "the model's code ended the process with exit code 0 before the result was complete"
    ]


@pytest.mark.parametrize(("action", "name"), [("killed", "SIGKILL"), ("crash", "SIGSEGV")])
def test_end_by_a_signal_is_an_error(run_command, action: str, name: str):
    assert run_command(action) == (
        2,
        "",
        [f"the process was ended by {name} before the result was complete"],
    )


@pytest.mark.parametrize("action", ["sleep", "loop"])
def test_call_that_exceeds_its_budget_is_stopped(run_command, action: str):
    began = time.monotonic()
    code, printed, (error,) = run_command(action)
    assert (code, printed) == (2, "")
    assert error.startswith("the model did not answer within --budget 0.1 and 1 more seconds")
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("action", ["exit handler", "exit in a handler", "thread", "no output"])
@pytest.mark.parametrize("code", [0, 1])
def test_exit_handlers_and_threads_do_not_change_a_complete_result(
    run_command, action: str, code: int
):
    assert run_command(action, code) == (code, "the report\n", [])


SCRIPT = """
import signal, sys
from tests.cli.child_commands import run
from teka.cli.child import run_in_child

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    sys.exit(run_in_child(run, ["audit", "interrupt", "0"], lambda message: 2))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_to_the_parent_also_ends_the_child(tmp_path: Path, number: signal.Signals):
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


@pytest.mark.parametrize("is_group", [True, False])
def test_interrupt_while_the_child_imports_is_one_line(tmp_path: Path, is_group: bool):
    imports = """
import time

if __name__ == "__mp_main__":
    print("importing", flush=True)
    time.sleep(2)
"""
    (tmp_path / "script.py").write_text(imports + SCRIPT)
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
        start_new_session=True,
    )
    timer = threading.Timer(60, process.kill)
    timer.start()
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    if is_group:  # as a terminal does
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGINT)
    output, errors = process.communicate()
    timer.cancel()
    assert (process.returncode, output, errors) == (130, "", "\ninterrupted\n")
