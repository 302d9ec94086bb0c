"""The notebooks of the tutorials run from top to bottom and print what their text says."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
MAX_BYTES = 100_000


def number(pattern: str, printed: str) -> float:
    """Return the number that a pattern captures."""
    match = re.search(pattern, printed, flags=re.MULTILINE)
    assert match, f"{pattern!r} not in {printed!r}"
    return float(match[1])


def first_steps(printed: str) -> bool:
    """The rotary model keeps its accuracy at the worst shift, and the absolute one does not."""
    rows = re.findall(
        r"^(\w+) +unshifted ([\d.]+) %, worst shift ([\d.]+) %$", printed, flags=re.MULTILINE
    )
    accuracy = {name: (float(unshifted), float(worst)) for name, unshifted, worst in rows}
    return (
        accuracy["rotary"][0] == accuracy["rotary"][1] > 80
        and accuracy["absolute"][0] > accuracy["absolute"][1]
    )


def audit_a_model(printed: str) -> bool:
    """The Performer and the fixed network are exact, and the strided network is not."""
    num_exact = printed.count("does not change the output beyond rounding")
    return num_exact == 2 and printed.count("pixels changes the prediction in") == 1


def transformers(printed: str) -> bool:
    """Fine-tuning restores the accuracy after a replacement."""
    softmax, replaced, tuned = (
        number(rf"^{name} ([\d.]+) %$", printed) for name in ("softmax", "replaced", "fine-tuned")
    )
    difference = number(r"difference with teka:softmax: (\S+)$", printed)
    return min(softmax, tuned) > 90 and replaced < softmax and difference < 1e-5


def train_a_classifier(printed: str) -> bool:
    """The trained model is accurate and exactly invariant."""
    return (
        number(r"test accuracy ([\d.]+) %", printed) > 85
        and number(r"largest change under shifts: (\S+)$", printed) < 1e-5
        and "class 1\n" in printed
    )


def generate_text(printed: str) -> bool:
    """The model learns, and steps equal the whole sequence."""
    return (
        number(r"step 200: ([\d.]+) nats", printed) < 3
        and number(r"difference: (\S+)$", printed) < 1e-12
    )


def points_and_volumes(printed: str) -> bool:
    """Volumes and points may be anywhere."""
    return (
        number(r"largest change: (\S+) of the output", printed) < 1e-5
        and number(r"accuracy (\d+) %", printed) > 90
        and "moved by 1,000 units: 0 predictions change" in printed
    )


CLAIMS = {
    claim.__name__: claim
    for claim in (
        first_steps,
        audit_a_model,
        transformers,
        train_a_classifier,
        generate_text,
        points_and_volumes,
    )
}


def printed_by(notebook: nbformat.NotebookNode) -> str:
    outputs = [
        output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
    ]
    return "".join(output.text for output in outputs if output.get("name") == "stdout")


def test_every_tutorial_is_small_and_has_a_claim():
    assert sorted(CLAIMS) == sorted(path.stem for path in TUTORIALS.glob("*.ipynb"))
    assert all((TUTORIALS / f"{name}.ipynb").stat().st_size < MAX_BYTES for name in CLAIMS)


@pytest.mark.parametrize("name", CLAIMS)
def test_tutorial_prints_the_same_when_it_runs_again(name: str):
    notebook = nbformat.read(TUTORIALS / f"{name}.ipynb", as_version=4)
    assert CLAIMS[name](printed_by(notebook)), "as committed"
    NotebookClient(notebook, timeout=240, coalesce_streams=True).execute()
    assert CLAIMS[name](printed_by(notebook)), "run again"
