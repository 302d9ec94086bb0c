import re
from importlib.metadata import requires
from pathlib import Path

import yaml
from packaging.requirements import Requirement

import teka

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_readme_code_runs(capsys):
    names, printed = {}, []
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), names)
        printed.append(capsys.readouterr().out)
    assert re.search(r"linear .*← used", printed[0])
    assert float(printed[1]) < 1e-5


def test_readme_is_short():
    assert BLOCKS
    assert len(README.split()) <= 600


def test_readme_links_resolve():
    for path in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / path).exists()


def test_version_is_consistent():
    for file in ["CITATION.cff"]:
        assert re.search(
            rf"^version: {re.escape(teka.__version__)}$",
            (ROOT / file).read_text(),
            flags=re.MULTILINE,
        )


def test_conda_recipe_matches_the_package():
    recipe = yaml.safe_load((ROOT / "conda.recipe" / "recipe.yaml").read_text(encoding="utf-8"))
    assert recipe["context"]["version"] == teka.__version__
    needed = [Requirement(text) for text in requires("teka") or [] if "extra ==" not in text]
    names = {"torch": "pytorch"}
    expected = [f"{names.get(need.name, need.name)} {need.specifier}" for need in needed]
    assert sorted(recipe["requirements"]["run"][1:]) == sorted(expected)


def test_locked_versions_fit_the_requirements():
    locked = dict(
        re.findall(
            r"^([\w.-]+)==([^ ]+)", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE
        )
    )
    needed = [
        requirement
        for requirement in map(Requirement, requires("teka") or [])
        if requirement.marker is None or "dev" in str(requirement.marker)
    ]
    assert {"lightning", "hypothesis", "numpy"} <= {requirement.name for requirement in needed}
    for requirement in needed:
        # The build of PyTorch depends on the machine.
        if requirement.name not in ("teka", "torch", "triton"):
            assert locked[requirement.name] in requirement.specifier
