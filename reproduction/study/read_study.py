"""Read a study from its YAML file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reproduction.study.study import Study
from teka.codec import decode
from teka.errors import wrong_value
from teka.files import read_yaml
from teka.training import read_recipe


def read_study(path: str | Path) -> Study:
    """Read a study's YAML file, whose keys are the arguments of `Study`, `Measure` and `Tune`.

    Among the fields of a run, `recipe` stands for all that the recipe of this name decides; fields beside it go first.

    Raises:
        ValueError: No such file, not YAML, an unknown key or recipe, or a value of the wrong kind.
    """
    fields = _mapping("study", read_yaml("study", path))
    for key in ("name", "factors"):
        if key not in fields:
            raise wrong_value("study", str(path), f"the key {key!r}")
    fields["factors"] = {
        factor: {
            level: _run_fields(f"factors.{factor}.{level}", run)
            for level, run in _mapping(f"factors.{factor}", levels).items()
        }
        for factor, levels in _mapping("factors", fields["factors"]).items()
    }
    fields |= {
        "name": str(fields["name"]),
        "description": str(fields.get("description", "")).strip(),
    }
    fields["base"] = _run_fields("base", fields.get("base"))
    fields["reference"] = {
        key: str(level) for key, level in _mapping("reference", fields.get("reference")).items()
    }
    fields["leave_out"] = [
        {
            factor: list(map(str, _several(levels)))
            for factor, levels in _mapping("leave_out", exclusion).items()
        }
        for exclusion in _several(fields.get("leave_out") or [])
    ]
    fields["measure"] = _mapping("measure", fields.get("measure"))
    if fields.get("tune") is not None:
        tune = _mapping("tune", fields["tune"])
        places = [_mapping("tune.at", place) for place in _several(tune.get("at", {}))]
        fields["tune"] = {
            **tune,
            "at": [{factor: str(level) for factor, level in at.items()} for at in places],
        }
    return decode(Study, fields, "study")


def _run_fields(argument: str, value: object) -> dict[str, Any]:
    fields = _mapping(argument, value)
    recipe = fields.pop("recipe", None)
    return fields if recipe is None else {**vars(read_recipe(str(recipe))), **fields}


def _mapping(argument: str, value: object) -> dict[str, Any]:
    """A mapping with strings as keys; nothing is an empty one."""
    if value is not None and not isinstance(value, Mapping):
        raise wrong_value(argument, value, "a mapping")
    return {str(key): item for key, item in (value or {}).items()}


def _several(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]
