"""Table 1 and Figure 1 of Horn et al. (2021): what is trained for them, and its training."""

from collections.abc import Callable, Mapping, Sequence
from importlib.resources import as_file, files
from pathlib import Path

from teka.errors import unknown_name
from teka.experiments.reference import figure1
from teka.experiments.study import Study, read_study, run_study
from teka.experiments.study.run_study import Progress

TARGETS = ("table1", "figure1")
SCALES = ("small", "full")


def read_reproduction(scale: str) -> Study:
    """The grid of models, data sets and seeds.

    Args:
        scale: "small", for a processor, or "full", at the paper's size, for a GPU.

    Raises:
        ValueError: An unknown scale.
    """
    if scale not in SCALES:
        raise unknown_name("scale", scale, SCALES)
    with as_file(files("teka.experiments.reproduce") / f"{scale}.yaml") as path:
        return read_study(path)


def target_levels(study: Study, target: str) -> dict[str, list[str]]:
    """The levels of the grid that a table or figure needs; of a factor that is not there, all.

    Args:
        study: The grid.
        target: "table1", which needs everything, or "figure1", which shows the Performers on the paper's two data sets.

    Raises:
        ValueError: An unknown target.
    """
    if target not in TARGETS:
        raise unknown_name("target", target, TARGETS)
    if target == "table1":
        return {}
    shown = {curve.data for curve in figure1()}
    data = [level for level in study.factors["data"] if level in shown]
    models = [level for level, run in study.factors["model"].items() if run.get("model", "performer") == "performer"]
    return {"data": data, "model": models}


def reproduce(
    target: str,
    out: str | Path,
    *,
    scale: str = "small",
    data_dir: str | None = None,
    processes: int = 1,
    parallel: str = "loky",
    only: Mapping[str, Sequence[str]] | None = None,
    command: str = "",
    progress: Callable[[Progress], None] = lambda _: None,
) -> Path:
    """Train and measure what a table or figure still lacks.

    Both targets share their models: what one has trained the other finds. Killed at any moment, the same call goes on.

    Args:
        target: "table1" or "figure1".
        out: Folder of the results; it gets a JSON file for each finished model in `cells/`.
        scale: "small" or "full".
        data_dir: Folder with the data sets' files.
        processes: Number of models trained side by side, each on its share of the cores.
        parallel: What runs them, as for `teka.experiments.study.run_study`.
        only: Levels of "data" or "model", or some seeds by "seed"; the others are left for later.
        command: The command to keep with the numbers.
        progress: Called at the beginning and after every model.

    Returns:
        The folder.

    Raises:
        ValueError: An unknown target, scale or level; nothing that the target needs among what is asked for; a folder
            with results of another grid; or data that cannot be loaded.
        ChildProcessError: A process was killed; its model is not finished, all others stay.
    """
    study = read_reproduction(scale)
    chosen = {factor: list(levels) for factor, levels in target_levels(study, target).items()}
    for factor, levels in (only or {}).items():
        needed = chosen.get(factor, levels)
        unneeded = [level for level in levels if level not in needed]
        known = study.factors.get(factor, {})
        if unneeded and unneeded[0] in known:
            raise unknown_name(f"only {factor} of {target}", unneeded[0], needed)
        chosen[factor] = list(levels)
    return run_study(
        study,
        out,
        data_dir=data_dir,
        processes=processes,
        parallel=parallel,
        only=chosen,
        command=command,
        progress=progress,
    )
