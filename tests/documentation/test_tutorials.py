"""The notebooks of the tutorials run again from top to bottom, and what they say of their numbers is so."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
LARGEST = 100_000  # bytes, with the pictures


def first_steps(printed: str) -> bool:
    """Rotary is as good at the worst shift as without one; absolute positions are not."""
    found = re.findall(
        r"^(\w+) +not moved ([\d.]+) %, worst shift ([\d.]+) %$", printed, flags=re.MULTILINE
    )
    accuracy = {name: (float(still), float(worst)) for name, still, worst in found}
    return (
        accuracy["rotary"][0] == accuracy["rotary"][1] > 80
        and accuracy["absolute"][0] > accuracy["absolute"][1]
    )


def audit_a_model(printed: str) -> bool:
    """The Performer and the mended network are exact, and the strided one is not."""
    exact = printed.count("does not change the output beyond rounding")
    return (
        exact == printed.count("No layer breaks") == 2
        and printed.count("pixels changes the prediction in") == 1
    )


def why_exactness(printed: str) -> bool:
    """Positions inside the features are seen, for every number of them; outside they are not, to rounding."""
    joint, exact = (
        [
            float(one)
            for one in re.findall(rf"^{name} +(.+)$", printed, flags=re.MULTILINE)[0].split()
        ]
        for name in ("rotation_joint", "rotation")
    )
    return min(joint) > 0.1 and max(exact) < 1e-14


CLAIMS = {claim.__name__: claim for claim in (first_steps, audit_a_model, why_exactness)}


def printed_by(notebook: nbformat.NotebookNode) -> str:
    outputs = [
        output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
    ]
    return "".join(output.text for output in outputs if output.output_type == "stream")


def test_every_tutorial_has_a_claim_and_is_small():
    assert sorted(CLAIMS) == sorted(path.stem for path in TUTORIALS.glob("*.ipynb"))
    assert all((TUTORIALS / f"{name}.ipynb").stat().st_size < LARGEST for name in CLAIMS)


@pytest.mark.parametrize("name", CLAIMS)
def test_a_tutorial_shows_what_it_gives_when_it_is_run_again(name: str):
    notebook = nbformat.read(TUTORIALS / f"{name}.ipynb", as_version=4)
    assert CLAIMS[name](printed_by(notebook)), "as committed"
    NotebookClient(notebook, timeout=240, coalesce_streams=True).execute()
    assert CLAIMS[name](printed_by(notebook)), "run again"
