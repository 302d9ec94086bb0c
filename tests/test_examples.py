"""The examples run, and what they train follows its input however short they train."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "training")


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_example_runs_and_its_models_are_exact(script: str):
    command = [sys.executable, str(EXAMPLES / f"{script}.py"), "--steps", "2", "--inputs", "4"]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=EXAMPLES.parent)
    changes = re.findall(r"largest change +(\S+) of .* in (float32|float64)$", run.stdout, flags=re.MULTILINE)
    assert len(changes) == run.stdout.count("largest change") > 0
    assert all(float(change) <= {"float32": 1e-5, "float64": 1e-12}[digits] for change, digits in changes), run.stdout


def test_the_page_of_examples_has_them_all():
    page = (EXAMPLES.parent / "docs" / "examples.md").read_text(encoding="utf-8")
    assert [script for script in SCRIPTS if f"examples/{script}.py" not in page] == []
