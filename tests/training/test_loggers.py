import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml
from lightning.pytorch.loggers import mlflow as lightnings_mlflow
from lightning.pytorch.loggers import wandb as lightnings_wandb

from teka.training import train
from tests.training.interrupt import InterruptAt

METRICS = {"train_loss", "validation_accuracy", "images_per_second"}


class WandbRun:
    """A stand-in for a run of Weights & Biases that records the calls of Lightning's logger."""

    def __init__(self, options):
        self.options, self.id = options, options["id"] or "made by the service"
        self.fields: dict[str, object] = {}
        self.config = SimpleNamespace(
            update=lambda fields, allow_val_change: self.fields.update(fields)
        )
        self.logged: list[Mapping[str, float]] = []
        self.log = self.logged.append
        self.exit_code: int | None = None

    def define_metric(self, name: str, **options: object) -> None:
        pass

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code


class MlflowServer:
    """A stand-in for a server of MLflow and its client that records the calls of Lightning's logger."""

    def __init__(self):
        self.address = ""
        self.runs: list[SimpleNamespace] = []

    def client(self, address: str) -> "MlflowServer":
        self.address = address
        return self

    def get_experiment_by_name(self, name: str) -> None:
        return None

    def create_experiment(self, name: str, artifact_location: str | None) -> str:
        return name

    def create_run(self, experiment_id: str, tags: Mapping[str, str]) -> SimpleNamespace:
        info = SimpleNamespace(run_id=f"run-{len(self.runs)}", experiment_id=experiment_id)
        self.runs.append(
            SimpleNamespace(info=info, tags=tags, status=["RUNNING"], fields={}, metrics=[])
        )
        return self.runs[-1]

    def get_run(self, run_id: str) -> SimpleNamespace:
        return next(run for run in self.runs if run.info.run_id == run_id)

    def log_batch(self, run_id: str, params=(), metrics=()) -> None:
        run = self.get_run(run_id)
        run.fields |= {param.key: param.value for param in params}
        run.metrics += metrics

    def update_run(self, run_id: str, status: str) -> None:
        self.get_run(run_id).status.append(status)

    def set_terminated(self, run_id: str, status: str) -> None:
        self.get_run(run_id).status.append(status)


@pytest.fixture
def install_modules(monkeypatch):
    """Return a function that replaces packages by modules with the given contents."""

    def install(contents: Mapping[str, Mapping[str, Any]]) -> None:
        for name, content in contents.items():
            module = ModuleType(name)
            module.__spec__ = ModuleSpec(name, None, origin="stand-in")
            vars(module).update(content)
            monkeypatch.setitem(sys.modules, name, module)

    return install


@pytest.fixture
def wandb_runs(install_modules, monkeypatch):
    """Return the runs of a Weights & Biases that only records them in a list."""
    runs: list[WandbRun] = []

    def init(**options: object) -> WandbRun:
        runs.append(WandbRun(options))
        return runs[-1]

    install_modules(
        {
            "wandb": {"run": None, "init": init},
            "wandb.sdk": {},
            "wandb.sdk.lib": {"RunDisabled": type(None)},
            "wandb.wandb_run": {"Run": WandbRun},
        }
    )
    monkeypatch.setattr(lightnings_wandb, "_WANDB_AVAILABLE", True)
    return runs


@pytest.fixture
def mlflow_server(install_modules, monkeypatch):
    """Return an MLflow server that only records its runs in a list."""
    server = MlflowServer()
    registry = ModuleType("mlflow.tracking.context.registry")
    context = SimpleNamespace(registry=registry)
    install_modules(
        {
            "mlflow": {"set_tracking_uri": lambda address: None},
            "mlflow.tracking": {"MlflowClient": server.client, "context": context},
            "mlflow.tracking.context": {"registry": registry},
            "mlflow.tracking.context.registry": {"resolve_tags": lambda tags: tags},
            "mlflow.entities": {"Param": SimpleNamespace, "Metric": SimpleNamespace},
            "mlflow.utils": {},
            "mlflow.utils.mlflow_tags": {"MLFLOW_RUN_NAME": "mlflow.runName"},
        }
    )
    monkeypatch.setattr(lightnings_mlflow, "_MLFLOW_AVAILABLE", True)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return server


def test_fields_of_the_run_are_saved_next_to_its_logs(trained, tiny):
    fields = yaml.safe_load((trained.folder / "logs" / "version_0" / "hparams.yaml").read_text())
    assert fields == {**tiny.to_dict(), "betas": list(tiny.betas)}


def test_wandb_receives_fields_and_metrics_and_resumes_its_run(tiny, tmp_path, wandb_runs):
    run = tiny.replace(epochs=3)
    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path / "mine", loggers=["wandb"], callbacks=[InterruptAt(7)])
    train(run, tmp_path / "mine", loggers=["wandb"], resume=True)
    first, second = wandb_runs
    assert first.id == second.id
    assert [wandb_run.exit_code for wandb_run in wandb_runs] == [1, 0]
    assert first.options["dir"] == str(tmp_path / "mine")
    assert (first.options["project"], first.options["name"], first.options["resume"]) == (
        "teka",
        "mine",
        "allow",
    )
    assert first.fields == {**run.to_dict(), "betas": list(run.betas)}
    assert set().union(*first.logged) >= METRICS
    assert [row["epoch"] for row in first.logged + second.logged if "train_loss" in row] == [
        0,
        1,
        2,
    ]


def test_mlflow_receives_fields_and_metrics_and_resumes_its_run(tiny, tmp_path, mlflow_server):
    run = tiny.replace(epochs=3)
    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path / "mine", loggers=["mlflow"], callbacks=[InterruptAt(7)])
    train(run, tmp_path / "mine", loggers=["mlflow"], resume=True)
    (mlflow_run,) = mlflow_server.runs
    assert mlflow_run.status == ["RUNNING", "FAILED", "RUNNING", "FINISHED"]
    assert mlflow_server.address == f"file:{tmp_path / 'mine' / 'mlruns'}"
    assert mlflow_run.tags == {"mlflow.runName": "mine"}
    assert mlflow_run.fields["learning_rate"] == str(run.learning_rate)
    assert {metric.key for metric in mlflow_run.metrics} >= METRICS
    assert [metric.step for metric in mlflow_run.metrics if metric.key == "train_loss"] == [2, 5, 8]


def test_nothing_is_logged_to_a_service_by_default(tiny, tmp_path, wandb_runs, mlflow_server):
    train(tiny.replace(epochs=1), tmp_path / "run")
    assert not wandb_runs
    assert not mlflow_server.runs


def test_failing_service_is_an_error_with_its_name(tiny, tmp_path, wandb_runs, monkeypatch):
    def fail(**options: object) -> None:
        raise RuntimeError("no API key\nmore")

    monkeypatch.setattr(sys.modules["wandb"], "init", fail)
    with pytest.raises(
        ValueError,
        match=r"^loggers must be a service that takes the run \(no API key\), got 'wandb'.",
    ):
        train(tiny, tmp_path / "run", loggers=["wandb"])


@pytest.mark.parametrize(("name", "package"), [("wandb", "wandb"), ("mlflow", "mlflow-skinny")])
def test_missing_package_is_an_error_with_the_install_command(
    tiny, tmp_path, monkeypatch, name, package
):
    monkeypatch.setattr("teka.training.loggers.find_spec", lambda name: None)
    with pytest.raises(
        ValueError,
        match=rf"^loggers must be a service whose package is installed, got '{name}'\. Run pip install {package}\.$",
    ):
        train(tiny, tmp_path / "run", loggers=[name])
    assert not (tmp_path / "run").exists()


def test_unknown_service_is_an_error_with_the_closest_name(tiny, tmp_path):
    with pytest.raises(ValueError, match="Did you mean 'wandb'"):
        train(tiny, tmp_path / "run", loggers=["wandbb"])
    assert not (tmp_path / "run").exists()
