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

NUMBERS = {"train_loss", "validation_accuracy", "images_per_second"}


class WandbRun:
    """A stand-in for a run of Weights & Biases, which keeps what Lightning's logger gives it."""

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
    """A stand-in for a server of MLflow and for its client, which keeps what Lightning's logger gives it."""

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
def installed(monkeypatch):
    """Put modules in the place of packages."""

    def install(contents: Mapping[str, Mapping[str, Any]]) -> None:
        for name, content in contents.items():
            module = ModuleType(name)
            module.__spec__ = ModuleSpec(name, None, origin="stand-in")
            vars(module).update(content)
            monkeypatch.setitem(sys.modules, name, module)

    return install


@pytest.fixture
def wandb_runs(installed, monkeypatch):
    """Runs at a Weights & Biases that is no more than a list."""
    runs: list[WandbRun] = []

    def init(**options: object) -> WandbRun:
        runs.append(WandbRun(options))
        return runs[-1]

    installed(
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
def mlflow_server(installed, monkeypatch):
    """An MLflow that is no more than a list."""
    server = MlflowServer()
    registry = ModuleType("mlflow.tracking.context.registry")
    context = SimpleNamespace(registry=registry)
    installed(
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


def test_the_runs_fields_are_beside_its_logs(trained, tiny):
    fields = yaml.safe_load((trained.folder / "logs" / "version_0" / "hparams.yaml").read_text())
    assert fields == {**tiny.to_dict(), "betas": list(tiny.betas)}


def test_weights_and_biases_gets_fields_and_numbers_and_goes_on_with_a_resumed_run(
    tiny, tmp_path, wandb_runs
):
    run = tiny.replace(epochs=3)
    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path / "mine", loggers=["wandb"], callbacks=[InterruptAt(7)])
    train(run, tmp_path / "mine", loggers=["wandb"], resume=True)
    first, second = wandb_runs
    assert first.id == second.id
    assert [one.exit_code for one in wandb_runs] == [1, 0]
    assert first.options["dir"] == str(tmp_path / "mine")
    assert (first.options["project"], first.options["name"], first.options["resume"]) == (
        "teka",
        "mine",
        "allow",
    )
    assert first.fields == {**run.to_dict(), "betas": list(run.betas)}
    assert set().union(*first.logged) >= NUMBERS
    assert [row["epoch"] for row in first.logged + second.logged if "train_loss" in row] == [
        0,
        1,
        2,
    ]


def test_mlflow_gets_fields_and_numbers_and_goes_on_with_a_resumed_run(
    tiny, tmp_path, mlflow_server
):
    run = tiny.replace(epochs=3)
    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path / "mine", loggers=["mlflow"], callbacks=[InterruptAt(7)])
    train(run, tmp_path / "mine", loggers=["mlflow"], resume=True)
    (kept,) = mlflow_server.runs
    assert kept.status == ["RUNNING", "FAILED", "RUNNING", "FINISHED"]
    assert mlflow_server.address == f"file:{tmp_path / 'mine' / 'mlruns'}"
    assert kept.tags == {"mlflow.runName": "mine"}
    assert kept.fields["learning_rate"] == str(run.learning_rate)
    assert {metric.key for metric in kept.metrics} >= NUMBERS
    assert [metric.step for metric in kept.metrics if metric.key == "train_loss"] == [2, 5, 8]


def test_nothing_is_sent_unless_asked_for(tiny, tmp_path, wandb_runs, mlflow_server):
    train(tiny.replace(epochs=1), tmp_path / "run")
    assert not wandb_runs
    assert not mlflow_server.runs


def test_a_service_that_refuses_is_an_error_that_names_it(tiny, tmp_path, wandb_runs, monkeypatch):
    def refuse(**options: object) -> None:
        raise RuntimeError("no API key\nmore")

    monkeypatch.setattr(sys.modules["wandb"], "init", refuse)
    with pytest.raises(
        ValueError,
        match=r"^loggers must be a service that takes the run \(no API key\), got 'wandb'.",
    ):
        train(tiny, tmp_path / "run", loggers=["wandb"])


@pytest.mark.parametrize(("name", "package"), [("wandb", "wandb"), ("mlflow", "mlflow-skinny")])
def test_a_service_that_is_not_installed_is_an_error_with_the_command_that_installs_it(
    tiny, tmp_path, monkeypatch, name, package
):
    monkeypatch.setattr("teka.training.loggers.find_spec", lambda name: None)
    with pytest.raises(
        ValueError,
        match=rf"^loggers must be an installed one, got '{name}'\. Run pip install {package}\.$",
    ):
        train(tiny, tmp_path / "run", loggers=[name])
    assert not (tmp_path / "run").exists()


def test_an_unknown_service_is_an_error_that_offers_the_nearest(tiny, tmp_path):
    with pytest.raises(ValueError, match="Did you mean 'wandb'"):
        train(tiny, tmp_path / "run", loggers=["wandbb"])
    assert not (tmp_path / "run").exists()
