"""Descriptions of studies: which models to train, and how to measure them."""

import functools
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from teka.audit import Movement
from teka.checks import check_name, check_sizes
from teka.codec import decode
from teka.errors import wrong_value
from teka.files import read_yaml
from teka.training import Run, read_recipe

_read_recipe = functools.cache(read_recipe)
Levels = Mapping[str, Sequence[str]]  # selected levels by factor


@dataclass(frozen=True)
class StudyModel:
    """Configuration of one model in a study.

    Attributes:
        labels: Level of each factor, such as `{"kernel": "softmax"}`.
        run: Training run of the model, with all options and the seed.
    """

    labels: Mapping[str, str]
    run: Run

    @property
    def name(self) -> str:
        """File name of the model, such as "softmax--rotary--seed-0"."""
        return "--".join([*map(make_file_name, self.labels.values()), f"seed-{self.run.seed}"])


def make_file_name(text: str) -> str:
    """Convert a text to a lowercase file name with dashes instead of special characters.

    >>> make_file_name("Performer (absolute)")
    'performer-absolute'
    """
    return re.sub(r"[^\w.]+", "-", text.lower()).strip("-.")


@dataclass(frozen=True)
class StabilitySettings:
    """Settings for measuring how many predictions stay the same when images are shifted.

    Args:
        shifts: Shifts (dy, dx) in pixels. An empty tuple means every circular shift.
        images: Number of test images, or None for all.
        crop_size: Side of the window in mode "crop".
    """

    shifts: tuple[tuple[float, float], ...] = ()
    images: int | None = None
    crop_size: int | None = None


@dataclass(frozen=True)
class MeasureSettings:
    """Settings for measuring the trained models of a study.

    Args:
        images: Number of test images, drawn with a fixed seed, or None for all.
        shifted_images: Number of these images to shift, or None for all.
        shifts: Shifts (dy, dx) in pixels. The zero shift is always added at the start.
        mode: Shift mode of `teka.audit.translate`. In mode "lossless", only images with wide enough
            blank margins are shifted.
        classes: Classes whose accuracy at every shift is measured separately.
        stability: Settings for measuring unchanged predictions, by shift mode.
        weights: Epoch whose weights are measured: "last", or "best" for the epoch with the highest
            validation accuracy.
        curve_points: Number of equally spaced points of the learning curve. A run with early
            stopping has one point per epoch instead.
        save: Dtype of the weights in the saved model files, or None to save no models.
    """

    images: int | None = None
    shifted_images: int | None = None
    shifts: tuple[tuple[int, int], ...] = ()
    mode: str = "circular"
    classes: tuple[int, ...] = ()
    stability: Mapping[str, StabilitySettings] = field(default_factory=dict)
    weights: Literal["last", "best"] = "last"
    curve_points: int = 8
    save: Literal["float32", "float16"] | None = None

    def __post_init__(self) -> None:
        for name in ("images", "shifted_images", "curve_points"):
            check_sizes({f"measure.{name}": getattr(self, name)}, or_none=True)
        Movement(self.mode)  # raises an error if the mode is unknown
        for mode, settings in self.stability.items():
            Movement(mode, crop_size=settings.crop_size)
        object.__setattr__(self, "shifts", tuple(dict.fromkeys([(0, 0), *self.shifts])))


@dataclass(frozen=True)
class Study:
    """Description of a study, which trains and compares several models.

    An option that differs between the models is called a factor, and its values are called levels.
    The study trains one model for each combination of levels and each seed.

    >>> from reproduction.study import Study
    >>> kernels = {"relu": {"kernel": "relu"}, "softmax": {"kernel": "softmax"}}
    >>> study = Study("kernels", {"kernel": kernels}, base={"epochs": 3}, seeds=(0, 1, 2))
    >>> study_models = study.models(only={"kernel": ["relu"]})
    >>> len(study_models), study_models[0].name, study_models[0].run.epochs
    (3, 'relu--seed-0', 3)

    Args:
        name: Name of the study.
        factors: Levels of each factor, with the fields of `Run` that each level sets. Later factors
            override earlier ones. The field `recipe` sets all fields of a recipe.
        base: Fields of `Run` that all models share.
        leave_out: Combinations of levels that are not trained. "seed" counts as a factor.
        seeds: Seeds of the models.
        measure: Settings for measuring the trained models.
        reference: Level of the reference model for some factors. The tables compare each model with
            the reference model of the same seed and the same levels of the other factors.
        description: Purpose of the study, for the results page.
        script: Module that trains the models, or "" if the command `study` can train them.

    Raises:
        ValueError: A factor or level is unknown, a name occurs twice, or a run is invalid.
    """

    name: str
    factors: Mapping[str, Mapping[str, Mapping[str, Any]]]
    base: Mapping[str, Any] = field(default_factory=dict)
    leave_out: tuple[Levels, ...] = ()
    seeds: tuple[int, ...] = (0,)
    measure: MeasureSettings = field(default_factory=MeasureSettings)
    reference: Mapping[str, str] = field(default_factory=dict)
    description: str = ""
    script: str = ""

    def __post_init__(self) -> None:
        self._check_levels("reference", {key: [level] for key, level in self.reference.items()})
        for levels in self.leave_out:
            self._check_levels("leave_out", levels)
        names = [model.name for model in self.models({"seed": [str(self.seeds[0])]})]
        duplicate = next((name for name in names if names.count(name) > 1), None)
        if duplicate is not None:
            expected = "levels whose names differ in letters or digits"
            raise wrong_value("factors", duplicate, expected)

    def models(self, only: Levels | None = None) -> list[StudyModel]:
        """Return the models of the study, ordered by seed.

        Args:
            only: Levels of some factors. Only models with these levels are returned. "seed" counts
                as a factor.
        """
        only = only or {}
        self._check_levels("only", only)
        study_models = []
        for seed, levels in itertools.product(
            self.seeds, itertools.product(*self.factors.values())
        ):
            labels = dict(zip(self.factors, levels, strict=True))
            all_levels = {**labels, "seed": str(seed)}
            is_left_out = any(
                _has_chosen_levels(all_levels, left_out) for left_out in self.leave_out
            )
            if _has_chosen_levels(all_levels, only) and not is_left_out:
                study_models.append(self.make_study_model(labels, seed))
        if not study_models:
            expected = "factors with levels that are not all left out"
            raise wrong_value("only" if only else "factors", dict(only or self.factors), expected)
        return study_models

    def make_study_model(self, labels: Mapping[str, str], seed: int) -> StudyModel:
        """Create the configuration of the model with the given level of each factor and seed."""
        fields: dict[str, Any] = {}
        for options in (self.base, *(self.factors[key][labels[key]] for key in labels)):
            if "recipe" in options:
                fields |= _read_recipe(options["recipe"])
            fields |= options
        fields.pop("recipe", None)
        try:
            return StudyModel(labels, Run.from_dict({**fields, "seed": seed}))
        except ValueError as error:
            name = ", ".join(labels.values())
            raise ValueError(f"study model {name}: {error}") from error

    def _check_levels(self, argument: str, chosen: Levels) -> None:
        known = {**self.factors, "seed": [str(seed) for seed in self.seeds]}
        for factor, levels in chosen.items():
            check_name(argument, factor, known)
            for level in levels:
                check_name(f"{argument} {factor}", level, known[factor])


def read_study(path: str | Path) -> Study:
    """Read a study from a YAML file whose keys are the arguments of `Study`.

    Raises:
        ValueError: The file is missing, or a key or a value is invalid.
    """
    return decode(Study, read_yaml("study", path), "study")


def _has_chosen_levels(labels: Mapping[str, str], chosen: Levels) -> bool:
    return all(labels[factor] in levels for factor, levels in chosen.items())
