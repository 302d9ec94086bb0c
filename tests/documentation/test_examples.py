"""The examples run, and what they train follows its input however short they train."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.forks import run

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "training")


def main(script: str) -> None:
    """Run an example for a short time."""
    sys.argv = [script, "--steps", "2", "--inputs", "4"]
    sys.path.insert(0, str(EXAMPLES))
    runpy.run_path(str(EXAMPLES / f"{script}.py"), run_name="__main__")


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_example_runs_and_its_models_are_exact(script: str, capfd: pytest.CaptureFixture[str]):
    run("tests.documentation.test_examples", script)
    printed = capfd.readouterr().out
    changes = re.findall(
        r"largest change +(\S+) of .* in (float32|float64)$", printed, flags=re.MULTILINE
    )
    assert len(changes) == printed.count("largest change") > 0
    assert all(
        float(change) <= {"float32": 1e-5, "float64": 1e-12}[digits] for change, digits in changes
    ), printed


def test_the_page_of_examples_has_them_all():
    page = (EXAMPLES.parent / "docs" / "examples.md").read_text(encoding="utf-8")
    assert [script for script in SCRIPTS if f"examples/{script}.py" not in page] == []
