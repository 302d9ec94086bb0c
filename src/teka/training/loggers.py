"""Where the numbers of a training are logged: files of the run's folder, and services that are asked for by name."""

import contextlib
import os
import uuid
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from teka.checks import check_name
from teka.codec import encode
from teka.errors import wrong_value
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
        if found is None or found.origin is None:  # a folder "wandb" beside the program is no package
            raise wrong_value("loggers", name, f"an installed one; pip install {SERVICES[name]}")


@contextlib.contextmanager
def open_loggers(names: Sequence[str], folder: Path, run: Run) -> Iterator[list[Logger]]:
    """Loggers of a training, which have been given the run's fields: a CSV table, TensorBoard's events, and services.

    Each start has a folder of its own for table and events, so that resuming keeps what was logged; at a service a
    resumed run continues. The services are "wandb" (into the project $WANDB_PROJECT) and "mlflow" (to
    $MLFLOW_TRACKING_URI and into the experiment $MLFLOW_EXPERIMENT_NAME). Project and experiment are "teka" by default,
    and MLflow writes into the run's folder.
    """
    table = CSVLogger(folder, name=LOGS)
    events = TensorBoardLogger(folder, name=LOGS, version=table.version, default_hp_metric=False)
    loggers: list[Logger] = [table, events]
    fields = encode(run.to_dict())
    failed = True
    try:
        for name in names:
            try:
                loggers.append(_wandb(folder) if name == "wandb" else _mlflow(folder))
            except Exception as error:  # whatever a service raises: a wrong key, an address that does not answer
                reason = next(iter(str(error).splitlines()), type(error).__name__)
                raise wrong_value("loggers", name, f"a service that takes the run ({reason})") from error
        for logger in loggers:
            logger.log_hyperparams(fields)
        yield loggers
        failed = False
    finally:
        for logger in loggers:
            if isinstance(logger, WandbLogger):  # which leaves its run open, for the next training to write into
                logger.experiment.finish(exit_code=int(failed))


def _wandb(folder: Path) -> WandbLogger:
    identity = _service_ids(folder).get("wandb") or uuid.uuid4().hex[:8]
    project = os.environ.get("WANDB_PROJECT", PROJECT)
    logger = WandbLogger(name=folder.resolve().name, id=identity, project=project, save_dir=folder)
    _ = logger.experiment
    _keep_service_id(folder, "wandb", identity)
    return logger


def _mlflow(folder: Path) -> MLFlowLogger:
    known = _service_ids(folder).get("mlflow")
    address = os.environ.get("MLFLOW_TRACKING_URI")
    if address is None:  # files are for a run of one's own still, but MLflow wants to be told so
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    logger = MLFlowLogger(
        experiment_name=os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT),
        run_name=folder.resolve().name,
        tracking_uri=address,
        save_dir=str(folder.resolve() / "mlruns"),
        run_id=known,
    )
    identity = logger.run_id
    assert identity is not None
    if known is not None:
        logger.experiment.update_run(identity, status="RUNNING")
    _keep_service_id(folder, "mlflow", identity)
    return logger


def _service_ids(folder: Path) -> dict[str, str]:
    path = folder / LOGS / SERVICES_FILE
    known = read_json(path) if path.is_file() else {}
    return {service: identity for service, identity in known.items() if isinstance(identity, str)}


def _keep_service_id(folder: Path, service: str, identity: str) -> None:
    (folder / LOGS).mkdir(exist_ok=True)
    write_json(folder / LOGS / SERVICES_FILE, {**_service_ids(folder), service: identity})
