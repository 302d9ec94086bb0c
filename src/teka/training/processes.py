"""Processes of a distributed training run."""

import os
from typing import NamedTuple

from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.utilities import rank_zero_only

from teka.errors import wrong_value


class Processes(NamedTuple):
    """Processes of a training run.

    Attributes:
        devices: Number of processes on each machine.
        num_nodes: Number of machines.
        launcher: Program that started the processes: "torchrun", "srun" or "".
    """

    devices: int
    num_nodes: int
    launcher: str

    @classmethod
    def of(cls, devices: int | None, num_nodes: int | None) -> "Processes":
        """Detect the processes that torchrun or srun started. Otherwise, use the arguments.

        Raises:
            ValueError: An argument contradicts the number of started processes.
        """
        if TorchElasticEnvironment.detect():
            total, each = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
            started = cls(each, total // each, "torchrun")
        elif "SLURM_STEP_ID" in os.environ and SLURMEnvironment.detect():
            total, nodes = int(os.environ["SLURM_NTASKS"]), int(os.environ.get("SLURM_NNODES", "1"))
            started = cls(total // nodes, nodes, "srun")
        else:
            return cls(devices or 1, num_nodes or 1, "")
        if started.devices * started.num_nodes != total:
            expected = f"the same number on each machine, as {started.launcher} must start them"
            raise wrong_value("processes", total, expected)
        for argument, value in (("devices", devices), ("num_nodes", num_nodes)):
            number = getattr(started, argument)
            if value not in (None, number):
                expected = f"{number}, as {started.launcher} started them, or left out"
                raise wrong_value(argument, value, expected)
        return started

    def environments(self) -> list[ClusterEnvironment]:
        """Return plugins for Lightning in cases that Lightning itself detects incorrectly."""
        if self.launcher == "srun":
            # Requeueing would save a checkpoint within an epoch.
            return [SLURMEnvironment(auto_requeue=False)]
        if not self.launcher and "SLURM_JOB_ID" in os.environ:
            # The script of a job is one process, however many tasks the job has.
            return [LightningEnvironment()]
        return []


def process_rank(new: int | None = None) -> int:
    """Return the rank of this process. If `new` is given, change the rank to it.

    A process that trains alone has rank 0.
    """
    rank = getattr(rank_zero_only, "rank", 0)
    if new is not None:
        setattr(rank_zero_only, "rank", new)  # noqa: B010, Lightning does not declare it
    return rank


def is_first_process() -> bool:
    """Return True in the process of rank 0, which writes files and prints."""
    return process_rank() == 0
