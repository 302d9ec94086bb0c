import copy
import csv
import multiprocessing
import runpy
import sys
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment

from teka import Grid
from teka.nn import TransformerBlock
from teka.training import Execution, execution, train
from teka.training.checkpoint import read_weights
from teka.training.processes import ProcessLayout


@pytest.fixture(scope="module")
def run(tiny):
    """Return a run of one epoch with 96 images in steps of 19, so that the last step has a single image.

    Mean pooling is used because the first gradients of a class token's queries are mere rounding errors, which Adam
    would turn into full steps.
    """
    return tiny.replace(
        batch_size=19, epochs=1, kernel="squared_relu", learning_rate=1e-3, pool="mean"
    )


@pytest.fixture(scope="module")
def reference_folder(run, tmp_path_factory):
    """Return the folder of the run on one device without gradient accumulation."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(run, folder)
    return folder


def read_losses(folder):
    with (folder / "logs" / "version_0" / "metrics.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row.get("train_loss")]
    return [float(row["train_loss"]) for row in rows]


def read_last_weights(folder):
    return read_weights(folder / "checkpoints" / "last.ckpt")


def assert_same_training(folder, reference_folder):
    assert read_losses(folder) == pytest.approx(read_losses(reference_folder), rel=1e-5)
    found, expected = read_last_weights(folder), read_last_weights(reference_folder)
    assert found.keys() == expected.keys()
    for name in expected:
        # Adam divides by the size of the gradient, so it amplifies the rounding of small gradients.
        torch.testing.assert_close(found[name], expected[name], rtol=1e-3, atol=5e-4)


@pytest.mark.parametrize(
    "execution",
    [
        pytest.param(Execution(accumulate=2), id="two micro-batches"),
        pytest.param(Execution(accumulate=3), id="three micro-batches of unequal sizes"),
        pytest.param(Execution(activation_checkpointing=True), id="activation checkpointing"),
    ],
)
def test_accumulation_and_checkpointing_give_the_same_training(
    run, reference_folder, tmp_path, execution
):
    train(run, tmp_path / "run", execution=execution)
    assert_same_training(tmp_path / "run", reference_folder)


SCRIPT = """
import sys
from pathlib import Path
from teka.training import Execution, Run, train
train(Run.load(Path(sys.argv[1])), sys.argv[2], execution=Execution(accelerator="cpu", devices=2))
"""


def run_script(*command):
    """Run a script in this process, as if it had been started by this command."""
    sys.argv[:] = command
    sys.modules["__main__"].__spec__ = None
    runpy.run_path(command[0])


def test_two_processes_give_the_same_training_as_one_process(run, reference_folder, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    command = str(script), str(reference_folder), str(tmp_path / "run")
    # The first process is a fork of this one and starts the second.
    first = multiprocessing.get_context("fork").Process(target=run_script, args=command)
    first.start()
    first.join(240)
    assert first.exitcode == 0
    assert_same_training(tmp_path / "run", reference_folder)
    assert (tmp_path / "run" / "result.json").is_file()


def test_compiled_model_is_saved_with_the_original_parameter_names(
    run, reference_folder, tmp_path, monkeypatch, capsys
):
    compiled = []

    def compile_model(model, **options):
        compiled.append(model)
        model._compiled_call_impl = model._call_impl

    monkeypatch.setattr(torch.nn.Module, "compile", compile_model)
    train(run, tmp_path / "run", execution=Execution(compile="on"))
    assert len(compiled) == 1
    assert "; torch.compile delays the first step" in capsys.readouterr().out
    assert read_last_weights(tmp_path / "run").keys() == read_last_weights(reference_folder).keys()


@pytest.mark.parametrize(
    ("compile", "num_steps", "has_compiler", "expected"),
    [
        ("on", 1, False, True),
        ("off", 10**6, True, False),
        ("auto", 100, True, False),
        ("auto", 10**6, False, False),
        ("auto", 10**6, True, True),
    ],
)
def test_compile_auto_compiles_long_runs_if_there_is_a_compiler(
    monkeypatch, compile, num_steps, has_compiler, expected
):
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda model, **options: compiled.append(model))
    monkeypatch.setattr(execution, "_has_compiler", lambda uses_cuda: has_compiler)
    Execution(compile=compile).checkpoint_and_compile(torch.nn.Linear(3, 5), num_steps)
    assert bool(compiled) == expected


@pytest.mark.parametrize("is_fast", [True, False])
def test_automatic_precision_is_bfloat16_on_fast_processors(monkeypatch, is_fast):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: is_fast)
    expected = "bfloat16" if is_fast else "float32"
    assert Execution(accelerator="cpu").choose_precision("auto") == expected
    assert Execution(accelerator="cpu").choose_precision("float32") == "float32"


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_mixed_precision_keeps_float32_weights_and_similar_losses(
    run, reference_folder, tmp_path, precision
):
    if precision == "float16" and not torch.cuda.is_available():
        with pytest.raises(
            ValueError,
            match=r"precision must be 'float32', 'bfloat16' or 'auto' on a CPU.*got 'float16'",
        ):
            train(run.replace(precision=precision), tmp_path / "run")
        return
    train(run.replace(precision=precision), tmp_path / "run")
    assert {tensor.dtype for tensor in read_last_weights(tmp_path / "run").values()} == {
        torch.float32
    }
    assert read_losses(tmp_path / "run") == pytest.approx(read_losses(reference_folder), rel=0.03)
    assert read_losses(tmp_path / "run") != read_losses(reference_folder)


def test_invalid_option_is_an_error_with_its_name(unchecked_annotations):
    for option, value in {
        "accelerator": "tpu",
        "devices": 0,
        "accumulate": True,
        "compile": "yes",
    }.items():
        wrong: dict[str, Any] = {option: value}
        with pytest.raises(ValueError, match=rf"{option} must be .*got {value!r}"):
            Execution(**wrong)


def test_activation_checkpointing_recomputes_blocks_in_the_backward_pass():
    for checkpointing, calls in ((False, 1), (True, 2)):
        block, called = TransformerBlock(8, 2, relative=None), Mock(return_value=None)
        block.attention.register_forward_hook(called)
        Execution(activation_checkpointing=checkpointing).checkpoint_and_compile(block, num_steps=1)
        block(torch.randn(1, 5, 8, requires_grad=True)).sum().backward()
        assert called.call_count == calls


def test_copy_of_a_checkpointed_block_uses_its_own_parameters():
    block = TransformerBlock(8, 2)
    Execution(activation_checkpointing=True).checkpoint_and_compile(block, num_steps=1)
    copied, tokens, grid = copy.deepcopy(block), torch.randn(1, 6, 8), Grid((2, 3))
    with torch.no_grad():
        copied.attention.output.weight.zero_()
    assert not torch.equal(copied(tokens, grid=grid), block(tokens, grid=grid))
    copied(tokens, grid=grid).sum().backward()
    assert all(parameter.grad is None for parameter in block.parameters())
    assert all(parameter.grad is not None for parameter in copied.parameters())


def test_activation_checkpointing_without_blocks_is_an_error():
    with pytest.raises(
        ValueError, match=r"activation_checkpointing must be False for Linear.*got True"
    ):
        Execution(activation_checkpointing=True).checkpoint_and_compile(
            torch.nn.Linear(3, 5), num_steps=1
        )


SRUN = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NAME": "teka",
    "SLURM_STEP_ID": "0",
    "SLURM_NTASKS": "8",
    "SLURM_NTASKS_PER_NODE": "4",
    "SLURM_NNODES": "2",
}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "3"}


@pytest.fixture
def set_launcher_variables(monkeypatch):
    """Return a function that sets the environment variables of a launcher."""

    def set_variables(variables):
        for name in (*SRUN, *TORCHRUN):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_variables


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        pytest.param({}, ProcessLayout(1, 1, ""), id="no launcher"),
        pytest.param(TORCHRUN, ProcessLayout(3, 2, "torchrun"), id="torchrun"),
        pytest.param(SRUN, ProcessLayout(4, 2, "srun"), id="srun"),
        pytest.param(
            SRUN | TORCHRUN, ProcessLayout(3, 2, "torchrun"), id="torchrun started by srun"
        ),
        pytest.param(
            {**SRUN, "SLURM_JOB_NAME": "bash"}, ProcessLayout(1, 1, ""), id="a shell in a job"
        ),
    ],
)
def test_detect_finds_the_processes_of_the_launcher(set_launcher_variables, variables, expected):
    set_launcher_variables(variables)
    assert ProcessLayout.detect(None) == expected
    assert ProcessLayout.detect(expected.devices) == expected


def test_detect_uses_the_given_devices_without_a_launcher(set_launcher_variables):
    set_launcher_variables({})
    assert ProcessLayout.detect(4) == ProcessLayout(4, 1, "")


def test_batch_script_of_a_slurm_job_is_one_process(set_launcher_variables):
    set_launcher_variables({name: value for name, value in SRUN.items() if name != "SLURM_STEP_ID"})
    processes = ProcessLayout.detect(None)
    assert processes == ProcessLayout(1, 1, "")
    assert [type(environment) for environment in processes.lightning_environment_overrides()] == [
        LightningEnvironment
    ]


def test_lightning_does_not_requeue_slurm_jobs(set_launcher_variables):
    set_launcher_variables(SRUN)
    (environment,) = ProcessLayout.detect(None).lightning_environment_overrides()
    assert isinstance(environment, SLURMEnvironment)
    assert not environment.auto_requeue


@pytest.mark.parametrize(
    ("variables", "devices", "message"),
    [
        (TORCHRUN, 2, "devices must be 3, as torchrun started them, or left out.*got 2"),
        (
            {**SRUN, "SLURM_NTASKS": "7"},
            None,
            "processes must be the same number on each machine.*got 7",
        ),
    ],
)
def test_layout_that_differs_from_the_launcher_is_an_error(
    set_launcher_variables, variables, devices, message
):
    set_launcher_variables(variables)
    with pytest.raises(ValueError, match=message):
        ProcessLayout.detect(devices)
