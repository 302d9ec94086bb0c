import re
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement

import teka
from teka.cli import COMMANDS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_code_in_the_readme_runs_from_top_to_bottom(capsys):
    names, printed = {}, []
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), names)
        printed.append(capsys.readouterr().out)
    assert float(printed[0]) < 1e-5
    assert re.search(r"linear .*← used", printed[1])
    assert "the output changes by" in printed[1]


def test_the_readme_names_every_command():
    assert BLOCKS
    for command in COMMANDS:
        assert f"teka {command}" in README


def test_what_the_readme_links_to_exists():
    for path in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / path).exists()


def test_the_version_is_the_same_everywhere():
    for file in ["CITATION.cff"]:
        assert re.search(
            rf"^version: {re.escape(teka.__version__)}$",
            (ROOT / file).read_text(),
            flags=re.MULTILINE,
        )


def test_every_package_of_the_tests_is_locked_at_a_version_that_the_project_takes():
    locked = dict(
        re.findall(
            r"^([\w.-]+)==([^ ]+)", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE
        )
    )
    needed = [
        one
        for one in map(Requirement, requires("teka") or [])
        if one.marker is None or "dev" in str(one.marker)
    ]
    assert {"lightning", "hypothesis", "numpy"} <= {one.name for one in needed}
    for one in needed:
        if one.name not in ("teka", "torch", "triton"):  # PyTorch's build is a machine's own
            assert locked[one.name] in one.specifier
