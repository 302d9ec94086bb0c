"""Damaged and malicious files, which must cause an error of one line or no wrong result."""

import json
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from teka.files import read_json
from tests.campaign.commands import AUDIT, SMALL
from tests.campaign.outcome import Outcome, Tally, run_command


class MaliciousObject:
    """Object that writes a file when it is unpickled."""

    def __reduce__(self) -> tuple:
        return Path.touch, (Path("unpickled"),)


def _resume_audit() -> Outcome:
    return run_command(
        ["audit", "model.py:make", *AUDIT, "--resume", "state", "--json", "again.json"]
    )


def _resume_training() -> Outcome:
    Path("run/result.json").unlink(missing_ok=True)
    return run_command(["train", "--resume", "run"])


def _json_reader(path: str, *keys: str) -> Callable[[], object]:
    def read() -> object:
        content = read_json(Path(path))
        return [content.get(key) for key in keys]

    return read


# For each file: the command that reads it, and a function that returns its result, or None if it may differ.
TARGETS: dict[str, tuple[Callable[[], Outcome], Callable[[], object] | None]] = {
    "run/checkpoints/last.ckpt": (
        _resume_training,
        _json_reader("run/result.json", "epochs", "validation_accuracy"),
    ),
    "run/checkpoints/best.ckpt": (
        lambda: run_command(["evaluate", "run"]),
        _json_reader("run/evaluation.json", "confusion"),
    ),
    "run/run.json": (
        lambda: run_command(["evaluate", "run"]),
        _json_reader("run/evaluation.json", "confusion"),
    ),
    "run/result.json": (lambda: run_command(["evaluate", "run"]), None),
    "model/config.json": (
        lambda: run_command(["predict", "picture.png", "--model", "model"]),
        None,
    ),
    "model/model.safetensors": (
        lambda: run_command(["predict", "picture.png", "--model", "model"]),
        lambda: "refused, unless it is the same file",
    ),
    "state/circular.safetensors": (_resume_audit, _json_reader("again.json", "metrics")),
    "data.npz": (
        lambda: run_command(
            ["train", *SMALL[2:], "--data", "data.npz", "--epochs", "1", "--out", "new"]
        ),
        None,
    ),
    "picture.png": (lambda: run_command(["predict", "picture.png", "--model", "model"]), None),
    "study.yaml": (
        lambda: run_command(["study", "study.yaml", "--summary", "--out", "studied"]),
        None,
    ),
    "studied/cells.jsonl.gz": (
        lambda: run_command(["study", "study.yaml", "--summary", "--out", "studied"]),
        None,
    ),
    "recipe.yaml": (
        lambda: run_command(["train", *SMALL, "--recipe", "recipe.yaml", "--out", "new"]),
        None,
    ),
    "report/report.json": (
        lambda: run_command(
            ["shift", "run", "--mode", "canvas", "--max-shift", "1", "--out", "report"]
        ),
        None,
    ),
}
FOLDERS = ("run", "model", "state", "report", "studied")
DEEP = b"[" * 100_000
INVALID_CONTENTS = (
    b"",
    b"{}",
    b"[]",
    b"null",
    b"NaN",
    b'{"a": NaN}',
    DEEP,
    b"\xff\xfe\x00",
    b"PK\x03\x04",
    b"PK\x05\x06" + bytes(18),
    b"\x93NUMPY\x01\x00",
    b"\x80\x04.",
    pickle.dumps(MaliciousObject()),
    (2**60).to_bytes(8, "little") + b"{}",
    b"&a [*a]",
    b"a: &a [x, x]\nb: &b [*a, *a]\n"
    + b"".join(b"c%d: &c%d [*b, *b]\n" % (i, i) for i in range(30)),
    b"!!python/object/apply:os.system ['touch unpickled']",
    b"\x89PNG\r\n\x1a\n" + bytes(50),
    bytes(1000),
)
VALUES: tuple[object, ...] = (
    None,
    -1,
    0,
    10**9,
    10**30,
    1.5,
    1e308,
    True,
    "",
    "a" * 1000,
    [],
    [[]],
    {},
    {"a": []},
)


def damage_files(number: int, seed: int) -> Tally:
    """Damage files of the fixtures in the working folder, and run the commands that read them.

    Args:
        number: Number of damaged files.
        seed: Seed of the damages.
    """
    tally, source = Tally("damaged and hostile files"), random.Random(seed)
    _resume_audit()
    run_command(["shift", "run", "--mode", "canvas", "--max-shift", "1", "--out", "report"])
    run_command(["study", "study.yaml", "--only", "kernel=relu", "--out", "studied"])
    shutil.rmtree("kept", ignore_errors=True)
    for name in FOLDERS:
        shutil.copytree(name, Path("kept") / name)
    for name in ("data.npz", "picture.png", "study.yaml", "recipe.yaml"):
        shutil.copy(name, Path("kept") / name)
    expected: dict[str, object] = {}
    for _ in range(number):
        name = source.choice([*TARGETS])
        if name not in expected:
            use, result = TARGETS[name]
            outcome = use()
            if outcome.code != 0:
                tally.add("unclear", f"undamaged {name}: {outcome.error}")
            expected[name] = None if result is None else result()
            _restore()
        path, before = Path(name), Path(name).read_bytes()
        what, damaged = _damage_content(before, path.suffix, source)
        path.write_bytes(damaged)
        use, result = TARGETS[name]
        outcome = use()
        case = f"{name}, {what}"
        if Path("unpickled").exists():
            Path("unpickled").unlink()
            tally.add("executed", case)
        elif (
            outcome.code == 0
            and result is not None
            and damaged != before
            and result() != expected[name]
        ):
            tally.add("wrong in silence", f"{case}: {result()}")
        elif outcome.code == 0 and name == "model/model.safetensors" and damaged != before:
            tally.add("wrong in silence", case)
        else:
            tally.add_command(case, outcome)
        _restore()
    return tally


def _restore() -> None:
    shutil.copytree("kept", ".", dirs_exist_ok=True)
    for name in FOLDERS:
        for path in Path(name).rglob("*"):
            if path.is_file() and not (Path("kept") / path).exists():
                path.unlink()
    for name in ("new", "again.json"):
        shutil.rmtree(name, ignore_errors=True)
        Path(name).unlink(missing_ok=True)


def _damage_content(content: bytes, suffix: str, source: random.Random) -> tuple[str, bytes]:
    kinds = ["one bit", "one byte", "cut off", "longer", "made up"]
    kind = source.choice([*kinds, "one value", "one value"] if suffix == ".json" else kinds)
    place = source.randrange(max(1, len(content)))
    changed = bytearray(content)
    if kind == "one bit":
        changed[place] ^= 1 << source.randrange(8)
    elif kind == "one byte":
        changed[place] = source.randrange(256)
    elif kind == "cut off":
        changed = changed[:place]
    elif kind == "longer":
        changed += source.randbytes(source.choice((1, 100)))
    elif kind == "made up":
        changed = bytearray(source.choice(INVALID_CONTENTS))
    else:
        value = json.loads(content)
        place = _change_value(value, source)
        changed = bytearray(json.dumps(value).encode())
    return f"{kind} at {place}", bytes(changed)


def _change_value(value: Any, source: random.Random) -> str:
    """Replace or delete one value of a dict or list of JSON data, and describe the change."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    key = source.choice(keys)
    inner = value[key]
    if isinstance(inner, dict | list) and inner and source.random() < 0.7:
        return f"{key}/{_change_value(inner, source)}"
    if source.random() < 0.2:
        del value[key]
        return f"{key} deleted"
    value[key] = source.choice(VALUES)
    return f"{key} = {value[key]!r:.50}"
