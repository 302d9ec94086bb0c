"""Measure the size and the structure of the source: python tests/house.py."""

import ast
import json
import subprocess
import sys
import tempfile
import tokenize
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "teka"
IGNORED_TOKENS = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
CALL_DEFAULT_LAYER = """
import torch, teka
layer = teka.nn.Attention(32, 4)
call = lambda: layer(torch.randn(2, 35, 32), teka.Grid((5, 7)))
"""
CALL_AUDIT = """
import torch, teka
from teka.audit import AuditSettings, audit
from torch import nn
layers = nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(100, 3)
model = nn.Sequential(*layers).eval()
images, labels = torch.rand(8, 1, 11, 11), torch.arange(8) % 3
call = lambda: audit(model, images, labels, AuditSettings(shifts=[-1, 0, 1]))
"""
# Trace the second call, because the first one imports modules and fills caches.
TRACE = """
import json, sys
from pathlib import Path
package = str(Path(teka.__file__).parent)
stack, entries, num_calls = [None], [], 0
def profile(frame, event, argument):
    global num_calls
    file = frame.f_code.co_filename
    if not file.startswith(package):
        return
    if event == "call":
        num_calls += 1
        if file != stack[-1]:
            entries.append((stack[-1], file))
        stack.append(file)
    elif event == "return" and len(stack) > 1:
        stack.pop()
call()
sys.setprofile(profile)
call()
sys.setprofile(None)
visits = {}
for index, (caller, file) in enumerate(entries):
    if index == 0 or entries[index - 1] != (caller, file):
        name = str(Path(file).relative_to(package))
        visits[name] = visits.get(name, 0) + 1
print(json.dumps({"visits": visits, "num_calls": num_calls}))
"""
COUNT_IMPORTS = """
import json, sys, torch, numpy, jaxtyping
before = set(sys.modules)
import teka
num_modules = len(set(sys.modules) - before)
print(json.dumps({"num_modules": num_modules, "has_audit": "teka.audit" in sys.modules}))
"""


def count_tokens(*folders: Path) -> int:
    """Count the Python tokens of all files in folders, without comments, line ends and indents."""
    count = 0
    for folder in folders:
        for path in folder.rglob("*.py"):
            with path.open("rb") as file:
                tokens = tokenize.tokenize(file.readline)
                count += sum(token.type not in IGNORED_TOKENS for token in tokens)
    return count


def count_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def count_public_names(files: list[Path]) -> int:
    """Count the names in every `__all__`."""
    count = 0
    for path in files:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign):
                targets = [target.id for target in node.targets if isinstance(target, ast.Name)]
                if "__all__" in targets:
                    count += len(ast.literal_eval(node.value))
    return count


def imported_modules(path: Path, modules: set[str]) -> set[str]:
    """Return the modules of teka that a file imports when it is imported itself.

    Imports within functions and under TYPE_CHECKING are left out. Relative imports are not used.
    """
    imported = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                imported.add(name if name in modules else node.module)
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
    return imported & modules


def import_cycles(files: list[Path]) -> list[str]:
    """Return the modules that import themselves through other modules."""
    paths = {}
    for path in files:
        parts = path.relative_to(SOURCE).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph = {name: imported_modules(path, set(paths)) for name, path in paths.items()}
    in_cycle = []
    for start in graph:
        reached, pending = set(), [start]
        while pending:
            new = graph[pending.pop()] - reached
            reached |= new
            pending += new
        if start in reached:
            in_cycle.append(start)
    return in_cycle


def measure(script: str) -> dict[str, Any]:
    """Run a script in a new process, and return the JSON object that it prints."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.run(
            [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=True
        )
    return json.loads(process.stdout.splitlines()[-1])


def checkout_bytes() -> int:
    """Return the size of all tracked files."""
    command = ["git", "ls-files", "-z"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [ROOT / name for name in names.split("\0") if name]
    return sum(path.stat().st_size for path in files if path.is_file())


def main() -> None:
    sources = sorted(PACKAGE.rglob("*.py"))
    tests = sorted((ROOT / "tests").rglob("*.py"))
    layer = measure(CALL_DEFAULT_LAYER + TRACE)
    audit = measure(CALL_AUDIT + TRACE)
    imports = measure(COUNT_IMPORTS)
    cycles = import_cycles(sources)
    rows: list[tuple[str, float, float | None]] = [
        (
            "tokens of functional and nn",
            count_tokens(PACKAGE / "functional", PACKAGE / "nn"),
            85_000,
        ),
        ("tokens of models", count_tokens(PACKAGE / "models"), 10_000),
        ("tokens of all sources", count_tokens(PACKAGE), None),
        ("lines of _compat.py", count_lines(PACKAGE / "_compat.py"), 60),
        ("files that a call of the default layer enters", len(layer["visits"]), 8),
        ("most visits of one of these files", max(layer["visits"].values()), 2),
        ("modules in import cycles", len(cycles), 0),
        ("public names in every __all__", count_public_names(sources), 150),
        ("megabytes of a checkout", round(checkout_bytes() / 1e6, 1), 17),
        ("source files", len(sources), 200),
        ("lines of the longest source file", max(map(count_lines, sources)), None),
        ("files that a small audit enters", len(audit["visits"]), 30),
        ("function calls of a small audit", audit["num_calls"], 2_000),
        ("modules that `import teka` adds to PyTorch's", imports["num_modules"], 80),
        ("`import teka` imports teka.audit (0 = no)", int(imports["has_audit"]), 0),
        ("test files", len(tests), None),
        ("tokens of the tests", count_tokens(ROOT / "tests"), None),
    ]
    for description, value, limit in rows:
        bound = "" if limit is None else f"≤ {limit:,}"
        verdict = "above" if limit is not None and value > limit else ""
        print(f"{description:50} {value:>9,} {bound:>9}  {verdict}".rstrip())
    print("\nvisits of a call of the default layer, by file:")
    for name, count in sorted(layer["visits"].items(), key=lambda item: -item[1]):
        print(f"  {count:>3}  {name}")
    for name in cycles:
        print(f"in an import cycle: {name}")


if __name__ == "__main__":
    main()
