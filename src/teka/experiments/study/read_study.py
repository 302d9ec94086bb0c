"""Read a study from its YAML file."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from teka.errors import unknown_name, wrong_value
from teka.experiments.study.study import Measure, Study, Tune
from teka.files import read_yaml
from teka.training import read_recipe

KEYS = ("name", "description", "base", "factors", "leave_out", "seeds", "measure", "tune", "reference")


def read_study(path: str | Path) -> Study:
    """Read a study's YAML file.

    Args:
        path: The file; its keys are the arguments of `Study`, `Measure` and `Tune`. Among the fields of a run, `recipe`
            stands for all that the recipe of this name decides; fields beside it go before it.

    Raises:
        ValueError: No such file, not YAML, an unknown key or recipe, or a value of the wrong kind.
    """
    content = read_yaml("study", path)
    fields = _mapping("study", content)
    _check_keys("study key", fields, KEYS)
    for key in ("name", "factors"):
        if key not in fields:
            raise wrong_value("study", str(path), f"the key {key!r}")
    factors = {
        str(factor): {
            str(level): _run_fields(f"factors.{factor}.{level}", run)
            for level, run in _mapping(f"factors.{factor}", levels).items()
        }
        for factor, levels in _mapping("factors", fields["factors"]).items()
    }
    leave_out = tuple(
        {factor: tuple(map(str, _several(levels))) for factor, levels in _mapping("leave_out", exclusion).items()}
        for exclusion in _sequence("leave_out", fields.get("leave_out", []))
    )
    return Study(
        name=str(fields["name"]),
        factors=factors,
        base=_run_fields("base", fields.get("base", {})),
        leave_out=leave_out,
        seeds=tuple(_whole("seeds", seed) for seed in _sequence("seeds", fields.get("seeds", [0]))),
        measure=_read_measure(_mapping("measure", fields.get("measure", {}))),
        tune=None if fields.get("tune") is None else _read_tune(_mapping("tune", fields["tune"])),
        reference={key: str(level) for key, level in _mapping("reference", fields.get("reference", {})).items()},
        description=str(fields.get("description", "")).strip(),
    )


def _read_measure(fields: Mapping[str, object]) -> Measure:
    _check_keys("measure key", fields, [field.name for field in dataclasses.fields(Measure)])
    known = {key: value for key, value in fields.items() if key not in ("shifts", "classes")}
    shifts: list[tuple[int, int]] = [(0, 0)]
    for shift in _sequence("measure.shifts", fields.get("shifts", [])):
        steps = tuple(_whole("measure.shifts", step) for step in _sequence("measure.shifts", shift))
        if len(steps) != 2:
            raise wrong_value("measure.shifts", shift, "pairs [dy, dx]")
        if steps not in shifts:
            shifts.append(steps)
    labels = _sequence("measure.classes", fields.get("classes", []))
    classes = tuple(_whole("measure.classes", label) for label in labels)
    # Measure checks the types of the others.
    return Measure(**known, shifts=tuple(shifts), classes=classes)  # pyright: ignore[reportArgumentType]


def _read_tune(fields: Mapping[str, object]) -> Tune:
    _check_keys("tune key", fields, ("field", "values", "per", "at", "seed"))
    for key in ("field", "values", "per"):
        if key not in fields:
            raise wrong_value("tune", dict(fields), f"the key {key!r}")
    return Tune(
        field=str(fields["field"]),
        values=tuple(_sequence("tune.values", fields["values"])),
        per=tuple(str(factor) for factor in _sequence("tune.per", fields["per"])),
        at=tuple(
            {factor: str(level) for factor, level in _mapping("tune.at", place).items()}
            for place in _several(fields.get("at", {}))
        ),
        seed=_whole("tune.seed", fields.get("seed", 0)),
    )


def _run_fields(argument: str, value: object) -> dict[str, object]:
    fields = _mapping(argument, value)
    recipe = fields.pop("recipe", None)
    return fields if recipe is None else {**vars(read_recipe(str(recipe))), **fields}


def _check_keys(argument: str, fields: Mapping[str, object], known: Sequence[str]) -> None:
    for key in fields:
        if key not in known:
            raise unknown_name(argument, key, known)


def _mapping(argument: str, value: object) -> dict[str, object]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise wrong_value(argument, value, "a mapping")
    return {str(key): item for key, item in value.items()}


def _sequence(argument: str, value: object) -> list[object]:
    if not isinstance(value, list):
        raise wrong_value(argument, value, "a list")
    return value


def _several(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _whole(argument: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong_value(argument, value, "whole numbers")
    return value
