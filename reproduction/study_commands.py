"""The commands `study`, `reproduce` and `sample-efficiency`.

Each command trains the models of a study that have no saved results yet, and then writes a page
that compares all models of the study.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from reproduction.horn2021.paper_comparison import (
    read_paper_study,
    select_paper_models,
    write_paper_comparison,
)
from reproduction.sample_efficiency.accuracy_tables import write_sample_efficiency_page
from reproduction.sample_efficiency.few_images import train_with_few_images
from reproduction.study import Study, read_study, run_study, write_study_page
from reproduction.study.study import Levels
from reproduction.study.train_and_measure import time_training_steps
from teka.cli.app import CommandLine
from teka.errors import wrong_value


@dataclass(frozen=True)
class StudyOptions:
    """Options shared by the commands that train the models of a study.

    Args:
        only: Train only models with these option values, as in --only "kernel=relu,softmax". The
            seed can be selected too. --only can be repeated.
        data_dir: Folder with the files of the data sets.
        processes: Number of models that are trained at the same time.
        parallel: "loky" for processes on this machine, or "dask:ADDRESS" for a Dask cluster.
        summary: Only write the tables and figures of the models that are already trained.
    """

    only: tuple[str, ...] = ()
    data_dir: str | None = None
    processes: int = 1
    parallel: str = "loky"
    summary: bool = False


SAMPLE_EFFICIENCY = Path(__file__).with_name("sample_efficiency")
SharedOptions = Annotated[StudyOptions, Parameter(name="*")]
NO_OPTIONS = StudyOptions()


def train_study(
    file: Path,
    /,
    *,
    out: Path | None = None,
    study_options: SharedOptions = NO_OPTIONS,
    step_seconds: bool = False,
    command: CommandLine = "",
) -> None:
    """Train the models described in a YAML file, and write tables that compare them.

    Run the same command again to resume an interrupted study.

    Args:
        file: YAML file of the study.
        out: Folder of the results, by default next to the file and with its name.
        study_options: Options that all commands of this module share.
        step_seconds: Only measure the time of one training step of each model.
        command: The command line.
    """
    plan = read_study(file)
    if plan.script:
        hint = f"Run python -m {plan.script}."
        raise wrong_value("file", str(file), "a study that this command can train", hint)
    folder = file.with_suffix("") if out is None else out
    if step_seconds:
        path = time_training_steps(
            plan,
            folder,
            data_dir=study_options.data_dir,
            processes=study_options.processes,
            command=command,
        )
        print(f"written: {path}")
    else:
        train_and_report(plan, folder, study_options, write_study_page, command=command)


def reproduce_paper(
    target: str,
    /,
    *,
    scale: str = "small",
    out: Path | None = None,
    study_options: SharedOptions = NO_OPTIONS,
    command: CommandLine = "",
) -> None:
    """Reproduce Table 1 or Figure 1 of Horn et al. (2021).

    The command trains the models and compares their accuracy with the paper. Figure 1 shows some of
    the models of Table 1, which are trained only once. Run the same command again to resume an
    interrupted reproduction.

    Args:
        target: "table1" or "figure1".
        scale: "small" for small models on a CPU, "full" for the paper's experiment on a GPU,
            "full-cpu" for our models at full resolution, or "one-stem" for the paper's position
            encodings, all with the same convolutional stem.
        out: Folder of the results, runs/reproduce-SCALE by default.
        study_options: Options that all commands of this module share.
        command: The command line.
    """
    plan = read_paper_study(scale)
    only = select_paper_models(plan, target)
    folder = Path(f"runs/reproduce-{scale}") if out is None else out
    train_and_report(
        plan, folder, study_options, write_paper_comparison, only=only, command=command
    )


def compare_sample_efficiency(
    *,
    out: Path = SAMPLE_EFFICIENCY,
    study_options: SharedOptions = NO_OPTIONS,
    command: CommandLine = "",
) -> None:
    """Train models on increasing numbers of images, and write tables and a plot of their accuracy.

    Run the same command again to resume an interrupted study. Each model uses one thread.

    Args:
        out: Folder of the results, by default reproduction/sample_efficiency.
        study_options: Options that all commands of this module share.
        command: The command line.
    """
    plan = read_study(SAMPLE_EFFICIENCY / "study.yaml")
    train_and_report(
        plan,
        out,
        study_options,
        write_sample_efficiency_page,
        train_study_model=train_with_few_images,
        command=command,
    )


def parse_selected_levels(options: Iterable[str]) -> dict[str, list[str]]:
    """Parse the values of `--only` into a dictionary from options to the values to train.

    >>> parse_selected_levels(["kernel=relu, softmax", "seed=0"])
    {'kernel': ['relu', 'softmax'], 'seed': ['0']}
    """
    only: dict[str, list[str]] = {}
    for option in options:
        factor, _, levels = option.partition("=")
        only.setdefault(factor, []).extend(level.strip() for level in levels.split(","))
    return only


def train_and_report(
    plan: Study,
    folder: Path,
    study_options: StudyOptions,
    write_page: Callable[[Study, Path], str],
    *,
    only: Levels | None = None,
    **options: Any,
) -> None:
    """Train the models of a study, then write and print a page that compares them.

    With the option `--summary`, write the page without training.
    """
    if not study_options.summary:
        selected = {**(only or {}), **parse_selected_levels(study_options.only)}
        run_study(
            plan,
            folder,
            data_dir=study_options.data_dir,
            processes=study_options.processes,
            parallel=study_options.parallel,
            only=selected,
            **options,
        )
    print(write_page(plan, folder))
