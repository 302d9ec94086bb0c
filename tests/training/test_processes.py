import pytest
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment

from teka.training.processes import Processes

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
        pytest.param({}, Processes(1, 1, ""), id="no launcher"),
        pytest.param(TORCHRUN, Processes(3, 2, "torchrun"), id="torchrun"),
        pytest.param(SRUN, Processes(4, 2, "srun"), id="srun"),
        pytest.param(SRUN | TORCHRUN, Processes(3, 2, "torchrun"), id="torchrun started by srun"),
        pytest.param({**SRUN, "SLURM_JOB_NAME": "bash"}, Processes(1, 1, ""), id="a shell in a job"),
    ],
)
def test_there_are_as_many_processes_as_were_started(started, variables, expected):
    started(variables)
    assert Processes.of(None, None) == expected
    assert Processes.of(expected.devices, expected.num_nodes) == expected


def test_without_a_launcher_there_are_as_many_as_asked_for(started):
    started({})
    assert Processes.of(4, None) == Processes(4, 1, "")


def test_the_script_of_a_job_is_one_process_whatever_tasks_the_job_has(started):
    started({name: value for name, value in SRUN.items() if name != "SLURM_STEP_ID"})
    processes = Processes.of(None, None)
    assert processes == Processes(1, 1, "")
    assert [type(environment) for environment in processes.environments()] == [LightningEnvironment]


def test_lightning_neither_saves_nor_requeues_a_job_by_itself(started):
    started(SRUN)
    (environment,) = Processes.of(None, None).environments()
    assert isinstance(environment, SLURMEnvironment)
    assert not environment.auto_requeue


@pytest.mark.parametrize(
    ("variables", "asked", "message"),
    [
        (TORCHRUN, (2, None), "devices is 2, expected 3, as torchrun started them, or to be left out"),
        (SRUN, (None, 1), "num_nodes is 1, expected 2, as srun started them"),
        ({**SRUN, "SLURM_NTASKS": "7"}, (None, None), "processes is 7, expected equally many on each"),
    ],
)
def test_other_processes_than_were_started_are_an_error(started, variables, asked, message):
    started(variables)
    with pytest.raises(ValueError, match=message):
        Processes.of(*asked)
