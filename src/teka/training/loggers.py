"""Where the numbers of a training are logged: files of the run's folder, and services that are asked for by name."""

import contextlib
import os
import uuid
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import (
    CSVLogger,
    Logger,
    MLFlowLogger,
    TensorBoardLogger,
    WandbLogger,
)

from teka.checks import check_name
from teka.codec import encode
from teka.errors import first_line, wrong_value
from teka.files import read_json, write_json
from teka.training.run import Run

# Names of the services and of the packages that they need.
SERVICES = {"wandb": "wandb", "mlflow": "mlflow-skinny"}
LOGS = "logs"
# The services' own names of this run, under which a resumed one continues.
SERVICES_FILE = "services.json"
PROJECT = "teka"


def check_loggers(names: Sequence[str]) -> None:
    """Check that the services are known and their packages installed; nothing is sent."""
    for name in names:
        check_name("loggers", name, SERVICES)
        found = find_spec(name)
        if (
            found is None or found.origin is None
        ):  # a folder "wandb" beside the program is no package
            raise wrong_value(
                "loggers", name, f"an installed one; run pip install {SERVICES[name]}"
            )


@contextlib.contextmanager
def open_loggers(names: Sequence[str], folder: Path, run: Run) -> Iterator[list[Logger]]:
    """Loggers of a training, which have been given the run's fields: a CSV table, TensorBoard's events, and services.

    Each start has a folder of its own for table and events; at a service a resumed run continues. The services are
    "wandb" (into the project $WANDB_PROJECT) and "mlflow" (to $MLFLOW_TRACKING_URI, by default the run's folder, and
    into the experiment $MLFLOW_EXPERIMENT_NAME). Project and experiment are "teka" by default.
    """
    table = CSVLogger(folder, name=LOGS)
    events = TensorBoardLogger(folder, name=LOGS, version=table.version, default_hp_metric=False)
    loggers: list[Logger] = [table, events]
    fields = encode(run.to_dict())
    failed = True
    try:
        for name in names:
            try:
                loggers.append(_open_service(name, folder))
            except (
                Exception
            ) as error:  # whatever a service raises: a wrong key, an address that does not answer
                raise wrong_value(
                    "loggers", name, f"a service that takes the run ({first_line(error)})"
                ) from error
        for logger in loggers:
            logger.log_hyperparams(fields)
        yield loggers
        failed = False
    finally:
        for logger in loggers:
            if isinstance(
                logger, WandbLogger
            ):  # which leaves its run open, for the next training to write into
                logger.experiment.finish(exit_code=int(failed))


def _open_service(name: str, folder: Path) -> Logger:
    """The logger of a service, whose own name of the run is kept for a resumed one."""
    file = folder / LOGS / SERVICES_FILE
    known: dict[str, Any] = read_json(file) if file.is_file() else {}
    identity, title = known.get(name), folder.resolve().name
    if name == "wandb":
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        logger = WandbLogger(
            name=title, id=identity or uuid.uuid4().hex[:8], project=project, save_dir=folder
        )
        _ = logger.experiment
    else:
        address = os.environ.get("MLFLOW_TRACKING_URI")
        if (
            address is None
        ):  # files are for a run of one's own still, but MLflow wants to be told so
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        options = {
            "run_name": title,
            "tracking_uri": address,
            "save_dir": str(folder.resolve() / "mlruns"),
        }
        logger = MLFlowLogger(
            os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT), **options, run_id=identity
        )
        if identity is not None:
            logger.experiment.update_run(identity, status="RUNNING")
    file.parent.mkdir(exist_ok=True)
    write_json(file, {**known, name: logger.version})
    return logger
