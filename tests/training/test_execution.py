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
    """One epoch of 96 images in steps of 19, so that the last step has one, fewer than parts.

    All tokens are read: a class token's queries begin with gradients as small as rounding, of which Adam makes steps.
    """
    return tiny.replace(
        batch_size=19, epochs=1, kernel="squared_relu", learning_rate=1e-3, pool="mean"
    )


@pytest.fixture(scope="module")
def whole(run, tmp_path_factory):
    """The folder of the run on one device and in one part."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(run, folder)
    return folder


def losses(folder):
    with (folder / "logs" / "version_0" / "metrics.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row.get("train_loss")]
    return [float(row["train_loss"]) for row in rows]


def weights(folder):
    return read_weights(folder / "checkpoints" / "last.ckpt")


def assert_the_same(folder, whole):
    assert losses(folder) == pytest.approx(losses(whole), rel=1e-5)
    found, expected = weights(folder), weights(whole)
    assert found.keys() == expected.keys()
    for name in expected:
        # Adam divides by the gradient's size, so that the rounding of a small gradient shows.
        torch.testing.assert_close(found[name], expected[name], rtol=1e-3, atol=5e-4)


@pytest.mark.parametrize(
    "execution",
    [
        pytest.param(Execution(accumulate=2), id="two parts"),
        pytest.param(Execution(accumulate=3), id="three parts, of unequal sizes"),
        pytest.param(Execution(activation_checkpointing=True), id="activations computed again"),
    ],
)
def test_the_numbers_are_those_of_one_device_and_one_part(run, whole, tmp_path, execution):
    train(run, tmp_path / "run", execution=execution)
    assert_the_same(tmp_path / "run", whole)


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


def test_two_processes_compute_what_one_does(run, whole, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    command = str(script), str(whole), str(tmp_path / "run")
    # The first process is a fork of this one, and starts the second.
    first = multiprocessing.get_context("fork").Process(target=run_script, args=command)
    first.start()
    first.join(240)
    assert first.exitcode == 0
    assert_the_same(tmp_path / "run", whole)
    assert (tmp_path / "run" / "result.json").is_file()


def test_a_compiled_model_is_trained_and_saved_by_the_names_of_a_plain_one(
    run, whole, tmp_path, monkeypatch
):
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda model, **options: compiled.append(model))
    train(run, tmp_path / "run", execution=Execution(compile="on"))
    assert len(compiled) == 1
    assert weights(tmp_path / "run").keys() == weights(whole).keys()


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
def test_long_runs_are_compiled_if_there_is_a_compiler(
    monkeypatch, compile, num_steps, has_compiler, expected
):
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda model, **options: compiled.append(model))
    monkeypatch.setattr(execution, "_has_compiler", lambda uses_cuda: has_compiler)
    Execution(compile=compile).prepare(torch.nn.Linear(3, 5), num_steps)
    assert bool(compiled) == expected


@pytest.mark.parametrize("is_fast", [True, False])
def test_automatic_precision_is_bfloat16_on_fast_processors(monkeypatch, is_fast):
    monkeypatch.setattr(execution, "_has_fast_bfloat16", lambda: is_fast)
    expected = "bfloat16" if is_fast else "float32"
    assert Execution(accelerator="cpu").resolve_precision("auto") == expected
    assert Execution(accelerator="cpu").resolve_precision("float32") == "float32"


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_lower_precision_trains_weights_in_float32_to_nearly_the_same(
    run, whole, tmp_path, precision
):
    if precision == "float16" and not torch.cuda.is_available():
        with pytest.raises(
            ValueError,
            match=r"precision must be 'float32', 'bfloat16' or 'auto' on a CPU.*got 'float16'",
        ):
            train(run.replace(precision=precision), tmp_path / "run")
        return
    train(run.replace(precision=precision), tmp_path / "run")
    assert {tensor.dtype for tensor in weights(tmp_path / "run").values()} == {torch.float32}
    assert losses(tmp_path / "run") == pytest.approx(losses(whole), rel=0.03)
    assert losses(tmp_path / "run") != losses(whole)


def test_a_wrong_option_is_an_error_that_names_it(unchecked_annotations):
    for option, value in {
        "accelerator": "tpu",
        "devices": 0,
        "num_nodes": 1.5,
        "accumulate": True,
        "compile": "yes",
    }.items():
        wrong: dict[str, Any] = {option: value}
        with pytest.raises(ValueError, match=rf"{option} must be .*got {value!r}"):
            Execution(**wrong)


def test_a_block_is_called_again_in_the_backward_pass_where_it_is_to_keep_its_input_alone():
    for again, calls in ((False, 1), (True, 2)):
        block, called = TransformerBlock(8, 2, relative=None), Mock(return_value=None)
        block.attention.register_forward_hook(called)
        Execution(activation_checkpointing=again).prepare(block, num_steps=1)
        block(torch.randn(1, 5, 8, requires_grad=True)).sum().backward()
        assert called.call_count == calls


def test_a_copied_block_computes_its_own_again_and_takes_arguments_by_name():
    block = TransformerBlock(8, 2)
    Execution(activation_checkpointing=True).prepare(block, num_steps=1)
    copied, tokens, grid = copy.deepcopy(block), torch.randn(1, 6, 8), Grid((2, 3))
    with torch.no_grad():
        copied.attention.output.weight.zero_()
    assert not torch.equal(copied(tokens, grid=grid), block(tokens, grid=grid))
    copied(tokens, grid=grid).sum().backward()
    assert all(one.grad is None for one in block.parameters())
    assert all(one.grad is not None for one in copied.parameters())


def test_a_model_without_blocks_has_none_to_compute_again():
    with pytest.raises(
        ValueError, match=r"activation_checkpointing must be False for Linear.*got True"
    ):
        Execution(activation_checkpointing=True).prepare(torch.nn.Linear(3, 5), num_steps=1)


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
def started(monkeypatch):
    """Set what a launcher sets."""

    def by(variables):
        for name in (*SRUN, *TORCHRUN):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return by


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
def test_there_are_as_many_processes_as_were_started(started, variables, expected):
    started(variables)
    assert ProcessLayout.detect(None, None) == expected
    assert ProcessLayout.detect(expected.devices, expected.num_nodes) == expected


def test_without_a_launcher_there_are_as_many_as_asked_for(started):
    started({})
    assert ProcessLayout.detect(4, None) == ProcessLayout(4, 1, "")


def test_the_script_of_a_job_is_one_process_whatever_tasks_the_job_has(started):
    started({name: value for name, value in SRUN.items() if name != "SLURM_STEP_ID"})
    processes = ProcessLayout.detect(None, None)
    assert processes == ProcessLayout(1, 1, "")
    assert [type(environment) for environment in processes.lightning_environments()] == [
        LightningEnvironment
    ]


def test_lightning_neither_saves_nor_requeues_a_job_by_itself(started):
    started(SRUN)
    (environment,) = ProcessLayout.detect(None, None).lightning_environments()
    assert isinstance(environment, SLURMEnvironment)
    assert not environment.auto_requeue


@pytest.mark.parametrize(
    ("variables", "asked", "message"),
    [
        (TORCHRUN, (2, None), "devices must be 3, as torchrun started them, or left out.*got 2"),
        (SRUN, (None, 1), "num_nodes must be 2, as srun started them.*got 1"),
        (
            {**SRUN, "SLURM_NTASKS": "7"},
            (None, None),
            "processes must be the same number on each machine.*got 7",
        ),
    ],
)
def test_other_processes_than_were_started_are_an_error(started, variables, asked, message):
    started(variables)
    with pytest.raises(ValueError, match=message):
        ProcessLayout.detect(*asked)
