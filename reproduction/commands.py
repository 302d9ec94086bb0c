"""The commands of `python -m reproduction`."""

from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from reproduction.horn2021 import read_reproduction
from reproduction.horn2021 import reproduce as train_reproduction
from reproduction.horn2021.reproduction import SCALES, TARGETS, write_reproduction
from reproduction.study import Study, pack_study, read_study, run_study
from reproduction.study.cells import CELLS, list_cells
from reproduction.study.report.write import write_study
from reproduction.study.run_cell import repeat_cell
from reproduction.study.run_study import Progress
from reproduction.study.step_seconds import measure_step_seconds
from teka.cli.parser import Option, Show, command, fields_of, progress_bar
from teka.errors import wrong_value
from teka.reporting.tables import Written

ONLY_HELP = (
    "Train only the runs at these levels; 'seed' is a factor too. May be given several times."
)
# What every command that trains a grid of runs takes.
GRID_OPTIONS = (
    fields_of(run_study, skip=("study", "out", "only", "command", "progress")),
    Option("--only", str, ONLY_HELP, [], action="append", metavar="FACTOR=LEVEL,..."),
    Option("--summary", bool, "Train nothing, and write the tables and plots."),
    Option(
        "--pack",
        bool,
        "Then pack the cells' files into one, cells.jsonl.gz, which is read as well.",
    ),
)


@command(
    Option("study", str, "YAML file of the study."),
    Option(
        "--out", str | None, "Folder of the results, beside the file and named after it by default."
    ),
    *GRID_OPTIONS,
    Option(
        "--repeat",
        str | None,
        "Train one finished cell again elsewhere and compare the numbers.",
        metavar="CELL",
    ),
    Option(
        "--step_seconds",
        bool,
        "Train nothing, and time a training step of every model in turn, to be compared.",
    ),
    examples=(
        "teka study studies/kernels.yaml --data-dir data --processes 2",
        'teka study studies/kernels.yaml --data-dir data --only data=digits --only "kernel=squared relu,softmax"',
        "teka study studies/kernels.yaml --summary --pack",
        "teka study studies/kernels.yaml --data-dir data --processes 2 --step-seconds",
        "teka study studies/kernels.yaml --data-dir data --repeat digits--squared-relu--rotation--seed-0",
    ),
)
def study(options: Namespace, command: str) -> None:
    """Train every cell of a study that has no result yet, then write tables and plots of all that have one.

    Killed at any moment, the same command resumes.
    """
    study = read_study(options.study)
    folder = Path(options.out) if options.out is not None else Path(options.study).with_suffix("")
    if options.repeat is not None:
        _repeat(study, folder, options.repeat, options.data_dir)
        return
    given = {"data_dir": options.data_dir, "processes": options.processes, "command": command}
    if options.step_seconds:
        if options.only:
            raise wrong_value(
                "only",
                options.only,
                "nothing with --step-seconds, which times every model of the study",
            )
        with progress_bar(lines=True) as show:
            print(f"written: {measure_step_seconds(study, folder, **given, progress=_steps(show))}")
        if not any(list_cells(folder / CELLS)):
            return
    elif not options.summary:
        only = parse_only(options.only)
        with progress_bar(lines=True) as show:
            run_study(
                study, folder, **given, parallel=options.parallel, only=only, progress=_steps(show)
            )
    written = write_study(folder, reference=study.reference, planned=len(study.places({})))
    _tell(written, pack_study(folder) if options.pack else ())


def _tell(written: Written, packed: Sequence[Path] = ()) -> None:
    print(f"{written.terminal}\nwritten: {', '.join(map(str, written.files))}")
    print(*(f"packed: {path}\n" for path in packed), sep="", end="")


def _steps(show: Show) -> Callable[[Progress], None]:
    """What a study calls with its progress."""
    return lambda step: show(
        step.stage, step.done, step.total, "" if step.cell is None else step.cell.name
    )


def _repeat(study: Study, folder: Path, cell: str, data_dir: str | None) -> None:
    stored, repeated = repeat_cell(study, folder, cell, data_dir=data_dir)
    for key, number in stored.items():
        print(f"{key:<22} {number!s:<22} again {repeated[key]}")
    if stored != repeated:
        reason = "other hardware, versions or threads may round otherwise"
        raise ValueError(f"{cell}: the numbers differ from those of the file; {reason}")
    print("the same numbers")


def parse_only(given: Sequence[str]) -> dict[str, list[str]]:
    """Levels by factor from "factor=level,level", which stood after --only."""
    only: dict[str, list[str]] = {}
    for entry in given:
        factor, equals, levels = entry.partition("=")
        if not (factor and equals and levels):
            raise wrong_value("only", entry, "FACTOR=LEVEL or FACTOR=LEVEL,LEVEL")
        only.setdefault(factor, []).extend(level.strip() for level in levels.split(","))
    return only


@command(
    Option("target", str, f"What to reproduce: {' or '.join(TARGETS)}."),
    Option(
        "--scale",
        str,
        "small, for a processor; full, the paper's size; full-cpu, our models at full resolution; or one-stem, the "
        "paper's positions behind their stem.",
        SCALES[0],
    ),
    Option("--out", str | None, "Folder of the results, runs/reproduce-SCALE by default."),
    *GRID_OPTIONS,
    Option("--list", bool, "Train nothing, and list the data sets, models and seeds."),
    examples=(
        "teka reproduce table1 --data-dir data --processes 2",
        "teka reproduce figure1 --data-dir data --only seed=0",
        'teka reproduce table1 --scale full --data-dir data --only "model=Performer (absolute)" --only data=mnist',
        "teka reproduce table1 --scale full-cpu --data-dir data --processes 2",
        "teka reproduce table1 --summary",
    ),
)
def reproduce(options: Namespace, command: str) -> None:
    """Train what a table or figure of Horn et al. (2021) still lacks, and write both from all that is there.

    Killed at any moment, the same command resumes.
    """
    study = read_reproduction(options.scale)
    if options.list:
        for factor, levels in {**study.factors, "seed": list(map(str, study.seeds))}.items():
            print(f"{factor}: {'; '.join(levels)}")
        return
    folder = Path(f"runs/reproduce-{options.scale}" if options.out is None else options.out)
    if not options.summary:
        with progress_bar(lines=True) as show:
            fields = {
                name: getattr(options, name)
                for name in ("scale", "data_dir", "processes", "parallel")
            }
            only = parse_only(options.only)
            train_reproduction(
                options.target, folder, **fields, only=only, command=command, progress=_steps(show)
            )
    written = write_reproduction(
        folder, description=study.description, planned=len(study.places({}))
    )
    _tell(written, pack_study(folder) if options.pack else ())
