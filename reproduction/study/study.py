"""What a study trains: a grid of runs, and what is measured of every one."""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from teka.audit.movement import MODES, TRANSLATION_MODES, Movement
from teka.checks import check_name, check_sizes
from teka.errors import wrong_value
from teka.models.model_file import DTYPES
from teka.training import Run

LONGEST_NAME = 180  # of the levels of a cell in the name of its file, which may be of 255 bytes
WEIGHTS = ("last", "best")


@dataclass(frozen=True)
class Cell:
    """A run, whose `data_dir` is left open as it changes no number, and the level of every factor that made it."""

    labels: Mapping[str, str]
    run: Run

    @property
    def name(self) -> str:
        """The levels and the seed, fit for a file's name."""
        return "--".join(
            [*(slug(level) for level in self.labels.values()), f"seed-{self.run.seed}"]
        )


def slug(words: str) -> str:
    """Words as a part of a file's name: lower case, with a dash for whatever is no letter, digit or dot within."""
    return re.sub(r"[^\w.]+", "-", words.lower()).strip("-.")


@dataclass(frozen=True)
class Stability:
    """Which answers are asked for again with the images moved.

    Args:
        shifts: The shifts (dy, dx), fractions in a mode that takes them; none for every whole shift of the torus.
        images: Number of test images, drawn once with a fixed seed; None for all that are measured.
        crop_size: Side of the window of mode "crop"; of models that take no other size nothing is then measured.

    Raises:
        ValueError: A number below 1.
    """

    shifts: tuple[tuple[float, float], ...] = ()
    images: int | None = None
    crop_size: int | None = None

    def __post_init__(self) -> None:
        check_sizes({"images": self.images, "crop_size": self.crop_size}, or_none=True)


@dataclass(frozen=True)
class Measure:
    """What is measured of every trained model.

    >>> from reproduction.study import Measure, Study
    >>> measure = Measure(images=1000, shifts=((0, 4), (4, 0)), mode="zero", save="float16")
    >>> Study("heads", {"heads": {"2": {"heads": 2}, "4": {"heads": 4}}}, measure=measure).measure.shifts
    ((0, 0), (0, 4), (4, 0))

    Args:
        images: Number of test images, drawn once with a fixed seed; None for all.
        shifted_images: Number of these that are shifted, the first ones; None for all.
        shifts: The shifts (dy, dx); (0, 0) is the first of them, whether named or not.
        mode: What happens at the edge, a mode of `teka.audit.translate`; with "lossless" those images alone are shifted
            whose blank margins, as `teka.data.lossless_selection` counts them, are wide enough for every shift.
        classes: Classes whose accuracy at every shift is kept besides that of all.
        stability: By mode of `teka.audit.translate`, what is asked for again with the images moved.
        weights: Those measured: "last", or "best", of the epoch with the highest validation accuracy.
        curve_points: Points of the learning curve, at equal distances in steps; a run with a patience has one after
            every epoch.
        save: Keep each model in the folder `models`, in "float32" or "float16"; None for not at all.

    Raises:
        ValueError: A number below 1, a class below 0, an unknown name, a crop without its size, or a fraction of a
            pixel in a mode that takes none.
    """

    images: int | None = None
    shifted_images: int | None = None
    shifts: tuple[tuple[int, int], ...] = ((0, 0),)
    mode: str = "circular"
    classes: tuple[int, ...] = ()
    stability: Mapping[str, Stability] = field(default_factory=dict)
    weights: str = "last"
    curve_points: int = 8
    save: str | None = None

    def __post_init__(self) -> None:
        sizes = {"measure.images": self.images, "measure.shifted_images": self.shifted_images}
        check_sizes({**sizes, "measure.curve_points": self.curve_points}, or_none=True)
        # A canvas or a crop would ask for models of another size than the trained ones.
        check_name("measure.mode", self.mode, set(TRANSLATION_MODES) - {"canvas", "crop"})
        check_name("measure.weights", self.weights, WEIGHTS)
        for mode, asked in self.stability.items():
            check_name("measure.stability", mode, TRANSLATION_MODES)
            Movement(mode, crop_size=asked.crop_size)
            fractions = [shift for shift in asked.shifts if any(step % 1 for step in shift)]
            if fractions and not MODES[mode].takes_fractions:
                raise wrong_value(
                    "measure.stability", fractions[0], f"whole pixels, by which mode {mode!r} moves"
                )
        shifts = tuple((dy, dx) for dy, dx in self.shifts)
        object.__setattr__(
            self, "shifts", ((0, 0), *(shift for shift in shifts if shift != (0, 0)))
        )
        if self.save is not None:
            check_name("measure.save", self.save, DTYPES)
        check_sizes(
            {f"measure.classes[{at}]": label for at, label in enumerate(self.classes)}, least=0
        )


@dataclass(frozen=True)
class Tune:
    """How a field of the runs is chosen for each level of some factors, before the study proper.

    The value with the lowest loss on held-out images, in the mean of the places, is taken.

    >>> from reproduction.study import Study, Tune
    >>> positions = {"rotary": {"position": "rotary"}, "fourier": {"position": "fourier"}}
    >>> tune = Tune("learning_rate", values=(1e-3, 3e-3), per=("position",), at=({},))
    >>> study = Study("tuned", {"position": positions}, seeds=(0, 1), tune=tune)
    >>> {levels: len(cells) for levels, cells in study.tuning_cells(study.places({})).items()}
    {('rotary',): 2, ('fourier',): 2}

    Args:
        field: The field of `Run`.
        values: The values tried.
        per: Factors for whose levels it is chosen.
        at: The places: for each, the level of every other factor.
        seed: Seed of these runs.

    Raises:
        ValueError: No values or no place.
    """

    field: str
    values: tuple[object, ...]
    per: tuple[str, ...]
    at: tuple[Mapping[str, str], ...]
    seed: int = 0

    def __post_init__(self) -> None:
        for argument in ("values", "at"):
            if not getattr(self, argument):
                raise wrong_value(f"tune.{argument}", [], "one or more")


@dataclass(frozen=True)
class Study:
    """A grid of runs: the product of the factors' levels and the seeds.

    >>> from reproduction.study import Study
    >>> positions = {"rotary": {"position": "rotary"}, "none": {"position": "none"}}
    >>> kernels = {"relu": {"kernel": "relu"}, "softmax": {"kernel": "softmax"}}
    >>> study = Study("two by two", {"position": positions, "kernel": kernels}, base={"epochs": 3}, seeds=(0, 1, 2))
    >>> cells = study.cells(study.places({"kernel": ["relu"]}), {})
    >>> len(cells), cells[0].labels, cells[0].run.epochs
    (6, {'position': 'rotary', 'kernel': 'relu'}, 3)

    Args:
        name: What to call it.
        factors: For each factor its levels, and for each level the fields of `Run` that it sets. A later factor's
            fields go before an earlier's.
        base: The fields of `Run` of every cell.
        leave_out: Combinations that are no cells: for each, some factors and the levels it speaks of.
        seeds: The seeds.
        measure: What is measured of every model.
        tune: A field to choose first, or None.
        reference: The level of some factors that the others are compared with.
        description: What it is for.

    Raises:
        ValueError: A factor or level that there is not, no factor, level or seed, or a run that cannot be.
    """

    name: str
    factors: Mapping[str, Mapping[str, Mapping[str, object]]]
    base: Mapping[str, object] = field(default_factory=dict)
    leave_out: tuple[Mapping[str, tuple[str, ...]], ...] = ()
    seeds: tuple[int, ...] = (0,)
    measure: Measure = field(default_factory=Measure)
    tune: Tune | None = None
    reference: Mapping[str, str] = field(default_factory=dict)
    description: str = ""

    def __post_init__(self) -> None:
        if not self.factors:
            raise wrong_value("factors", dict(self.factors), "one factor or more")
        for factor, levels in self.factors.items():
            if not levels:
                raise wrong_value(f"factors.{factor}", dict(levels), "one level or more")
            _check_names(f"factors.{factor}", levels)
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise wrong_value("seeds", list(self.seeds), "one seed or more, each once")
        for exclusion in self.leave_out:
            for factor, levels in exclusion.items():
                for level in levels:
                    self._check_level("leave_out", factor, level)
        for factor, level in self.reference.items():
            self._check_level("reference", factor, level)
        if self.tune is not None:
            self._check_tune(self.tune)
        longest = "--".join(max(map(slug, levels), key=len) for levels in self.factors.values())
        if len(longest.encode()) > LONGEST_NAME:
            raise wrong_value(
                "factors", longest, f"levels whose names make at most {LONGEST_NAME} bytes together"
            )
        if not [self.make_cell(labels, self.seeds[0]) for labels in self.combinations()]:
            raise wrong_value(
                "leave_out", list(self.leave_out), "combinations that leave some cell"
            )

    def combinations(self) -> Iterator[dict[str, str]]:
        """The level of every factor, for every combination that is not left out, the last factor fastest."""
        for levels in itertools.product(*self.factors.values()):
            labels = dict(zip(self.factors, levels, strict=True))
            if not self._is_left_out(labels):
                yield labels

    def make_cell(
        self, labels: Mapping[str, str], seed: int, chosen: Mapping[str, object] | None = None
    ) -> Cell:
        """The cell at some levels; the chosen, tuned fields go before all others."""
        fields = dict(self.base)
        for factor, level in labels.items():
            fields |= self.factors[factor][level]
        try:
            return Cell(dict(labels), Run.from_dict({**fields, "seed": seed, **(chosen or {})}))
        except ValueError as error:
            where = ", ".join(f"{factor} {level!r}" for factor, level in labels.items())
            raise ValueError(f"the cell of {where} is no run: {error}") from error

    def places(self, only: Mapping[str, Sequence[str]]) -> list[tuple[dict[str, str], int]]:
        """The levels and the seed of every cell that is asked for, seed by seed: one stopped early has whole grids."""
        known = {**self.factors, "seed": dict.fromkeys(map(str, self.seeds))}
        for factor, levels in only.items():
            check_name("only", factor, known)
            for level in levels:
                check_name(f"only {factor}", level, known[factor])
        places = [
            (labels, seed)
            for seed in self.seeds
            for labels in self.combinations()
            if all(
                {**labels, "seed": str(seed)}[factor] in levels for factor, levels in only.items()
            )
        ]
        if not places:
            raise wrong_value(
                "only",
                {factor: list(levels) for factor, levels in only.items()},
                "levels of some cell",
            )
        return places

    def cells(
        self,
        places: Iterable[tuple[Mapping[str, str], int]],
        chosen: Mapping[tuple[str, ...], object],
    ) -> list[Cell]:
        """The cells at some places, with the tuned value by the levels of `tune.per`."""
        return [
            self.make_cell(labels, seed, self._chosen_field(labels, chosen))
            for labels, seed in places
        ]

    def tuning_cells(
        self, places: Iterable[tuple[Mapping[str, str], int]]
    ) -> dict[tuple[str, ...], list[Cell]]:
        """The cells that are compared to tune a field, by the levels of `tune.per`; none without a field to tune."""
        if self.tune is None:
            return {}
        field, seed = self.tune.field, self.tune.seed
        groups: dict[tuple[str, ...], list[Cell]] = {}
        for place, _ in places:
            levels = tuple(place[factor] for factor in self.tune.per)
            if levels not in groups:
                groups[levels] = [
                    Cell(
                        {**labels, field: str(value)},
                        self.make_cell(labels, seed, {field: value}).run,
                    )
                    for at in self.tune.at
                    if not self._is_left_out(
                        labels := {factor: at.get(factor, place[factor]) for factor in place}
                    )
                    for value in self.tune.values
                ]
        return {levels: cells for levels, cells in groups.items() if cells}

    def _chosen_field(
        self, labels: Mapping[str, str], chosen: Mapping[tuple[str, ...], object]
    ) -> dict[str, object]:
        if self.tune is None:
            return {}
        levels = tuple(labels[factor] for factor in self.tune.per)
        if levels not in chosen:
            where = ", ".join(
                f"{factor} {level!r}" for factor, level in zip(self.tune.per, levels, strict=True)
            )
            places = [dict(at) for at in self.tune.at]
            raise ValueError(f"tune.at is {places}, which is left out for {where}, expected a cell")
        return {self.tune.field: chosen[levels]}

    def _check_tune(self, tune: Tune) -> None:
        for factor in tune.per:
            check_name("tune.per", factor, self.factors)
        for at in tune.at:
            for factor, level in at.items():
                self._check_level("tune.at", factor, level)
            if set(at) != set(self.factors) - set(tune.per):
                raise wrong_value(
                    "tune.at", dict(at), f"a level of every factor that is not in {list(tune.per)}"
                )
        check_name("tune.field", tune.field, Run().to_dict())
        _check_names("tune.values", [str(value) for value in tune.values])

    def _is_left_out(self, labels: Mapping[str, str]) -> bool:
        return any(
            all(labels[factor] in levels for factor, levels in out.items())
            for out in self.leave_out
        )

    def _check_level(self, argument: str, factor: str, level: str) -> None:
        check_name(f"{argument} factor", factor, self.factors)
        check_name(f"{argument} level of {factor}", level, self.factors[factor])


def _check_names(argument: str, names: Iterable[str]) -> None:
    """Check that names stay apart in the names of files."""
    found: dict[str, str] = {}
    for name in names:
        part = slug(name)
        if not part:
            raise wrong_value(argument, name, "a name with a letter or a digit")
        if part in found:
            raise wrong_value(
                argument, name, f"a name that differs from {found[part]!r} in letters or digits"
            )
        found[part] = name
