"""Loggers of a training run: CSV, TensorBoard, Weights & Biases and MLflow."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from lightning.pytorch.loggers import (
    CSVLogger,
    Logger,
    MLFlowLogger,
    TensorBoardLogger,
    WandbLogger,
)

from teka.checks import check_name
from teka.codec import encode
from teka.errors import first_line_of_error, wrong_value
from teka.files import read_json, write_json
from teka.training.run import Run

# Logging services, and the packages that they need.
SERVICES = {"wandb": "wandb", "mlflow": "mlflow-skinny"}
LOGS = "logs"
# Stores the run identifier of each service, so that a resumed run continues its record.
SERVICES_FILE = "services.json"
PROJECT = "teka"


def check_logger_names(names: Sequence[str]) -> None:
    """Raise an error if a logger is unknown or its package is not installed."""
    for name in names:
        check_name("loggers", name, SERVICES)
        module = find_spec(name)
        # A folder "wandb" next to the program is not the package.
        if module is None or module.origin is None:
            hint = f"Run pip install {SERVICES[name]}."
            raise wrong_value("loggers", name, "a service whose package is installed", hint)


@contextlib.contextmanager
def open_loggers(names: Sequence[str], folder: Path, run: Run) -> Iterator[list[Logger]]:
    """Open the loggers of a training run, as a context manager that yields them in a list.

    CSV and TensorBoard are always included. They start a new folder whenever a run is started or
    resumed. Weights & Biases and MLflow are optional, and continue the record of a resumed run:

    - "wandb" logs to the project `$WANDB_PROJECT`, by default "teka".
    - "mlflow" logs to the server `$MLFLOW_TRACKING_URI`, by default the folder of the run. The
      experiment is `$MLFLOW_EXPERIMENT_NAME`, by default "teka".

    Args:
        names: Additional logging services: "wandb", "mlflow" or both.
        folder: Folder of the run.
        run: Configuration, which is logged as hyperparameters.

    Raises:
        ValueError: A service cannot be opened.
    """
    table = CSVLogger(folder, name=LOGS)
    loggers: list[Logger] = [
        table,
        TensorBoardLogger(folder, name=LOGS, version=table.version, default_hp_metric=False),
    ]
    failed = True
    try:
        for name in names:
            try:
                loggers.append(_open_tracking_logger(name, folder))
            except Exception as error:  # each service has its own types of errors
                raise wrong_value(
                    "loggers", name, f"a service that takes the run ({first_line_of_error(error)})"
                ) from error
        for logger in loggers:
            logger.log_hyperparams(encode(run.to_dict()))
        yield loggers
        failed = False
    finally:
        for logger in loggers:
            # Lightning leaves the run open, so that the next training would write into it.
            if isinstance(logger, WandbLogger):
                logger.experiment.finish(exit_code=int(failed))


def _open_tracking_logger(name: str, folder: Path) -> Logger:
    """Open the Lightning logger of Weights & Biases ("wandb") or MLflow ("mlflow").

    The identifier of the record is stored in the folder of the run. If the run is resumed, the
    logger continues this record.
    """
    file = folder / LOGS / SERVICES_FILE
    identities = read_json(file) if file.is_file() else {}
    identity = identities.get(name)
    title = folder.resolve().name
    if name == "wandb":
        logger = WandbLogger(
            name=title,
            id=identity,
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            save_dir=folder,
        )
        _ = logger.experiment  # start the run, which then has an identity
    else:
        # MLflow writes to files only if this is set.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        logger = MLFlowLogger(
            os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT),
            run_name=title,
            tracking_uri=os.environ.get("MLFLOW_TRACKING_URI"),
            save_dir=str(folder.resolve() / "mlruns"),
            run_id=identity,
        )
        if identity is not None:
            logger.experiment.update_run(identity, status="RUNNING")
    file.parent.mkdir(exist_ok=True)
    write_json(file, {**identities, name: logger.version})
    return logger
