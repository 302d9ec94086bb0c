"""Counts of the source, as CONTRIBUTING states them: python tests/house.py."""

import ast
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "teka"
FEW_LINES = 60
LAYER = """
import torch, teka
layer = teka.nn.Attention(32, 4)
call = lambda: layer(torch.randn(2, 35, 32), teka.Grid((5, 7)))
"""
AUDIT = """
import torch
from teka.audit import audit
from torch import nn
model = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(100, 3)).eval()
images, labels = torch.rand(8, 1, 11, 11), torch.arange(8) % 3
call = lambda: audit(model, images, labels, shifts=[-1, 0, 1])
"""
COUNT = """
import json, sys
files, calls = set(), 0
def profile(frame, event, argument):
    global calls
    if event == "call" and "/teka/" in frame.f_code.co_filename:
        files.add(frame.f_code.co_filename)
        calls += 1
call()
files.clear(); calls = 0
sys.setprofile(profile)
call()
sys.setprofile(None)
print(json.dumps([len(files), calls]))
"""
IMPORT = """
import json, sys, torch, numpy, jaxtyping
before = set(sys.modules)
import teka
print(json.dumps([len(set(sys.modules) - before), int("teka.audit" in sys.modules)]))
"""


def lines_of(files: list[Path]) -> list[int]:
    return [len(path.read_text(encoding="utf-8").splitlines()) for path in files]


def public_names(files: list[Path]) -> int:
    """Names in every `__all__`."""
    names = 0
    for path in files:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and any(
                isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets
            ):
                names += len(ast.literal_eval(node.value))
    return names


def measured(script: str) -> list[int]:
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=True
        )
    return json.loads(run.stdout.splitlines()[-1])


def checkout_bytes() -> int:
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return sum(
        (ROOT / name).stat().st_size
        for name in names.split("\0")
        if name and (ROOT / name).is_file()
    )


def main() -> None:
    sources = sorted(PACKAGE.rglob("*.py"))
    lines = lines_of(sources)
    tests = sorted((ROOT / "tests").rglob("*.py"))
    layer, audit, modules = measured(LAYER + COUNT), measured(AUDIT + COUNT), measured(IMPORT)
    rows = [
        ("source files", len(sources), 200),
        ("source lines", sum(lines), 28_000),
        (f"files under {FEW_LINES} lines", sum(count < FEW_LINES for count in lines), 30),
        ("longest file", max(lines), 300),
        ("public names in all __all__", public_names(sources), 150),
        ("files a call of the default layer enters", layer[0], 14),
        ("files of one small audit()", audit[0], 30),
        ("calls of one small audit()", audit[1], 2000),
        ("modules of import teka, beside torch, numpy and jaxtyping", modules[0], 80),
        ("audit loaded by import teka", modules[1], 0),
        ("megabytes of a checkout", round(checkout_bytes() / 1e6, 1), 12),
    ]
    for what, count, most in rows:
        print(f"{what:60} {count:>9,} {f'≤ {most:,}':>9} {'' if count <= most else '  above'}")
    print(f"{'test files, lines':60} {len(tests):>9,} {sum(lines_of(tests)):>9,}")


if __name__ == "__main__":
    main()
