import ast
import subprocess
import sys
from pathlib import Path

import pytest

import teka

PACKAGE = Path(teka.__file__).parent
# A package imports only from its own group and from earlier groups.
ORDER = (
    ("_compat", "_checkpoint"),
    ("execution_mode", "precision"),
    ("checks", "codec", "errors", "files", "grid", "memory", "provenance"),
    ("data", "reporting"),
    ("audit",),
    ("testing",),
    ("functional",),
    ("nn",),
    ("models",),
    ("prediction",),
    ("integrations",),
    ("convert",),
    ("training",),
    ("cli",),
    ("__main__",),
)
LEVELS = {part: level for level, parts in enumerate(ORDER) for part in parts}
# Layers work without the tools that measure models, and these tools accept any model.
INDEPENDENT = (("functional", "nn", "models"), ("audit", "testing"))
# Optional packages, and packages that only tests need.
NOT_IMPORTED = (
    "lightning",
    "pytorch_lightning",
    "sklearn",
    "matplotlib",
    "jinja2",
    "cyclopts",
    "beartype",
    "scipy",
    "torchvision",
    "tensorboard",
    "pooch",
    "requests",
    "PIL",
    "safetensors",
    "transformers",
    "onnxruntime",
    "timm",
    "accelerate",
    "huggingface_hub",
    "triton",
)
MODULES = sorted(path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py"))


def imported_parts(source: str, package: tuple[str, ...] = ()) -> set[str]:
    """Return the packages of teka that a module imports, also within functions.

    Args:
        source: Source code of the module.
        package: Names of the packages within teka that contain the module.
    """
    parts: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = ("teka", *package)[: len(package) + 2 - node.level]
                base = ".".join((*above, *([base] if base else [])))
            names = [f"{base}.{alias.name}" for alias in node.names] if base == "teka" else [base]
        else:
            continue
        parts |= {part_of((*name.split(".")[1:],)) for name in names if name.startswith("teka.")}
    return parts & set(LEVELS)


def part_of(names: tuple[str, ...]) -> str:
    """Return the package of a module. The baselines are a package of their own."""
    return names[0]


@pytest.mark.parametrize("part", sorted({part_of(path.parts) for path in MODULES} - {"__init__"}))
def test_packages_import_only_from_packages_to_their_left(part: str):
    assert part in LEVELS, f"{part} belongs to no group of the one-way order"
    for module in (path for path in MODULES if part_of(path.parts) == part):
        source = (PACKAGE / module).with_suffix(".py").read_text(encoding="utf-8")
        late = {
            imported
            for imported in imported_parts(source, module.parts[:-1])
            if LEVELS[imported] > LEVELS[part]
        }
        assert not late, f"{module} imports from {', '.join(sorted(late))}, which lie to its right"


def test_layers_do_not_import_the_audit():
    layers, tools = INDEPENDENT
    for module in (path for path in MODULES if part_of(path.parts) in layers):
        source = (PACKAGE / module).with_suffix(".py").read_text(encoding="utf-8")
        imported = imported_parts(source, module.parts[:-1]) & set(tools)
        assert not imported, f"{module} imports from {', '.join(sorted(imported))}"


def test_imported_parts_finds_all_forms_of_imports():
    for source, package, expected in [
        ("import teka.nn.attention", (), {"nn"}),
        ("from teka import nn, Grid", (), {"nn"}),
        ("from teka.models import Performer", (), {"models"}),
        ("from ..models import Performer", ("nn",), {"models"}),
        ("from .. import models", ("nn",), {"models"}),
        ("from .attention import Attention", ("nn",), {"nn"}),
        ("def late():\n    from teka.cli import main", (), {"cli"}),
        ("import torch.nn\nfrom torch import nn", (), set()),
    ]:
        assert imported_parts(source, package) == expected


def test_missing_extra_is_named():
    script = "import sys; sys.modules['lightning'] = None; from teka.training import train"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "training needs lightning" in run.stderr
    assert "pip install 'teka[train]'" in run.stderr


def test_import_needs_no_extras():
    script = (
        "import sys, teka, teka.reporting.plots;"
        f"print(*(name for name in {NOT_IMPORTED} if name in sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []
