"""Training of a study's models in several processes or on a Dask cluster."""

import functools
import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any

import joblib

from reproduction.study.results import (
    RESULTS_FILE,
    TRAINING,
    load_saved_results,
    save_model_results,
)
from reproduction.study.study import Levels, Study, StudyModel
from reproduction.study.train_and_measure import train_and_measure
from teka.checks import check_sizes
from teka.errors import wrong_value
from teka.files import make_directory, resolve_path
from teka.training import Run


def run_study(
    study: Study,
    out: str | Path,
    *,
    train_study_model: Callable[..., dict[str, Any]] | None = None,
    data_dir: str | None = None,
    processes: int = 1,
    parallel: str = "loky",
    only: Levels | None = None,
    command: str = "",
) -> Path:
    """Train and measure the models of a study that have no saved results yet.

    Call the function again to resume an interrupted study: saved results are kept, and each model
    continues from its last checkpoint. Calls for different models can share a folder.

    Args:
        study: The study.
        out: Folder for the results.
        train_study_model: Function that trains a `StudyModel`, given the model and the folder, and
            returns the results to save. The default is `train_and_measure`.
        data_dir: Folder with the files of the data sets.
        processes: Number of models that are trained at the same time, each with an equal share of
            the CPU cores.
        parallel: "loky" for processes on this machine, or "dask:ADDRESS" for a Dask cluster whose
            workers have one thread and share the folder.
        only: Levels of some factors. Only models with these levels are trained. "seed" counts as a
            factor.
        command: Command line that is saved with the results.

    Returns:
        The folder of the results.

    Raises:
        ImportError: Dask is not installed.
        ValueError: An argument is invalid, or the folder contains results of another study.
        ChildProcessError: A training process was killed.
    """
    check_sizes({"processes": processes})
    study_models = study.models(only)
    folder = resolve_path("out", make_directory("out", out))
    train = functools.partial(
        train_study_model or functools.partial(train_and_measure, measure=study.measure),
        folder=folder,
        data_dir=None if data_dir is None else str(resolve_path("data_dir", data_dir)),
        command=command,
    )
    saved = load_saved_results(folder / RESULTS_FILE)
    for study_model in study_models:
        check_saved_options(saved, study_model, folder)
    calls = [
        joblib.delayed(_train_alone)(train, study_model)
        for study_model in study_models
        if study_model.name not in saved
    ]
    num_saved = len(study_models) - len(calls)
    with _configure_joblib(parallel, processes):
        results: Any = joblib.Parallel(return_as="generator_unordered", pre_dispatch="all")(calls)
        try:
            for num_finished, (name, content) in enumerate(results, start=num_saved + 1):
                save_model_results(folder / RESULTS_FILE, name, content)
                shutil.rmtree(folder / TRAINING / name, ignore_errors=True)
                print(f"{num_finished}/{len(study_models)} {name}", flush=True)
        except BrokenExecutor as error:
            raise ChildProcessError(
                "A training process was killed, perhaps because memory ran out. "
                "Run the same command again to resume, with fewer --processes if necessary."
            ) from error
    return folder


def _train_alone(
    train: Callable[[StudyModel], dict[str, Any]], study_model: StudyModel
) -> tuple[str, dict[str, Any]]:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    try:
        return study_model.name, train(study_model)
    except ValueError as error:
        raise ValueError(f"study model {study_model.name}: {error}") from error


def check_saved_options(
    saved: Mapping[str, dict[str, Any]], study_model: StudyModel, folder: Path
) -> None:
    """Raise an error if the saved results of a model come from a run with other options.

    Args:
        saved: Saved results of all models, by model name.
        study_model: Model of the study.
        folder: Folder of the results, for the error message.

    Raises:
        ValueError: An option of the saved run differs.
    """
    name = study_model.name
    # Early results of bounded_rotary and linear_positions were saved without a run.
    if "run" in saved.get(name, {}):
        fields = study_model.run.differing_fields(Run.from_dict(saved[name]["run"]))
        if fields:
            hint = f"{name} differs in {', '.join(fields)}."
            raise wrong_value("out", str(folder), "the folder of this study", hint)


def _configure_joblib(parallel: str, processes: int) -> joblib.parallel_config:
    """Return a context manager within which joblib uses local processes or a Dask cluster."""
    if parallel == "loky":
        return joblib.parallel_config("loky", n_jobs=processes, initializer=_exit_when_parent_ends)
    name, _, address = parallel.partition(":")
    if name != "dask" or not address:
        raise wrong_value("parallel", parallel, "'loky' or 'dask:ADDRESS'")
    return joblib.parallel_config("dask", n_jobs=-1, scheduler_host=address)


def _exit_when_parent_ends() -> None:
    """End this process when its parent process ends, for example after Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
