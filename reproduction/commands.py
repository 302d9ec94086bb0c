"""The commands `study`, `reproduce` and `sample-efficiency`."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from reproduction.horn2021.report import read_scale, target_levels, write_reproduction
from reproduction.sample_efficiency.report import write_report
from reproduction.sample_efficiency.train import train_cell
from reproduction.study import Study, read_study, run_study, write_study
from reproduction.study.step_seconds import measure_step_seconds
from teka.cli.app import CommandLine
from teka.errors import wrong_value


@dataclass(frozen=True)
class GridOptions:
    """Options of the commands that train a grid of runs.

    Args:
        only: Train only the cells with these levels, as in --only "kernel=relu,softmax". The seed
            is a factor too. The option can be repeated.
        data_dir: Folder with the files of the data sets.
        processes: Number of cells that are trained at the same time.
        parallel: "loky" for processes of this machine, "dask" for a new local cluster, or
            "dask:ADDRESS" for a running one.
        summary: Train nothing, and write the tables and figures of the finished cells.
    """

    only: tuple[str, ...] = ()
    data_dir: str | None = None
    processes: int = 1
    parallel: str = "loky"
    summary: bool = False


SAMPLE_EFFICIENCY = Path(__file__).with_name("sample_efficiency")
Grid = Annotated[GridOptions, Parameter(name="*")]
NO_OPTIONS = GridOptions()


def study(
    file: Path,
    /,
    *,
    out: Path | None = None,
    grid: Grid = NO_OPTIONS,
    step_seconds: bool = False,
    command: CommandLine = "",
) -> None:
    """Train every cell of a study that is not finished, and write tables and figures.

    The same command resumes an interrupted study.

    Args:
        file: YAML file of the study.
        out: Folder of the results, by default next to the file and with its name.
        grid: Options of the grid.
        step_seconds: Train nothing, and time a training step of every model.
        command: The command line.
    """
    plan = read_study(file)
    if plan.script:
        hint = f"Run python -m {plan.script}."
        raise wrong_value("file", str(file), "a study that this command can train", hint)
    folder = file.with_suffix("") if out is None else out
    if step_seconds:
        path = measure_step_seconds(
            plan, folder, data_dir=grid.data_dir, processes=grid.processes, command=command
        )
        print(f"written: {path}")
    else:
        _run(plan, folder, grid, parse_only(grid.only), write_study, command)


def reproduce(
    target: str,
    /,
    *,
    scale: str = "small",
    out: Path | None = None,
    grid: Grid = NO_OPTIONS,
    command: CommandLine = "",
) -> None:
    """Reproduce Table 1 or Figure 1 of Horn et al. (2021), and write tables and figures.

    Both targets share their cells. The same command resumes an interrupted reproduction.

    Args:
        target: "table1" or "figure1".
        scale: "small" for small models on a CPU, "full" for the experiment of the paper on a GPU,
            "full-cpu" for our models at full resolution, or "one-stem" for the position encodings
            of the paper behind one stem.
        out: Folder of the results, runs/reproduce-SCALE by default.
        grid: Options of the grid.
        command: The command line.
    """
    plan = read_scale(scale)
    only = target_levels(plan, target) | parse_only(grid.only)
    folder = Path(f"runs/reproduce-{scale}") if out is None else out
    _run(plan, folder, grid, only, write_reproduction, command)


def sample_efficiency(
    *, out: Path = SAMPLE_EFFICIENCY, grid: Grid = NO_OPTIONS, command: CommandLine = ""
) -> None:
    """Train models on few images, and write a table and a figure of their accuracies.

    The same command resumes an interrupted study. Every model is trained by one thread.

    Args:
        out: Folder of the results, by default that of the study.
        grid: Options of the grid.
        command: The command line.
    """
    plan = read_study(SAMPLE_EFFICIENCY / "study.yaml")
    only = parse_only(grid.only)
    _run(plan, out, grid, only, write_report, command, train_cell=train_cell)


def parse_only(options: Iterable[str]) -> dict[str, list[str]]:
    """Return the levels of each factor in options such as "kernel=relu, softmax"."""
    only: dict[str, list[str]] = {}
    for option in options:
        factor, _, levels = option.partition("=")
        only.setdefault(factor, []).extend(level.strip() for level in levels.split(","))
    return only


def _run(
    plan: Study,
    folder: Path,
    grid: GridOptions,
    only: dict[str, list[str]],
    write: Callable[[Study, Path], str],
    command: str,
    **options: Any,
) -> None:
    if not grid.summary:
        run_study(
            plan,
            folder,
            data_dir=grid.data_dir,
            processes=grid.processes,
            parallel=grid.parallel,
            only=only,
            command=command,
            **options,
        )
    print(write(plan, folder))
