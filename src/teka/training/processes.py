"""Number and launcher of the processes in distributed training."""

import os
from typing import NamedTuple

from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.utilities import rank_zero_only

from teka.errors import wrong_value


class ProcessLayout(NamedTuple):
    """Number of processes and machines of a distributed training run, and its launcher.

    Attributes:
        devices: Number of processes on each machine.
        num_nodes: Number of machines.
        launcher: "torchrun", "srun", or "" if neither of them started the processes.
    """

    devices: int
    num_nodes: int
    launcher: str

    @classmethod
    def detect(cls, devices: int | None) -> "ProcessLayout":
        """Detect how many processes torchrun or srun has started, from environment variables.

        If there is no launcher, this machine runs `devices` processes, by default 1.

        Args:
            devices: Value of the option `--devices`, or None.

        Raises:
            ValueError: `devices` contradicts the number of started processes.
        """
        if TorchElasticEnvironment.detect():
            launcher = "torchrun"
            total = int(os.environ["WORLD_SIZE"])
            each = int(os.environ["LOCAL_WORLD_SIZE"])
            nodes = total // each
        elif "SLURM_STEP_ID" in os.environ and SLURMEnvironment.detect():
            launcher = "srun"
            total = int(os.environ["SLURM_NTASKS"])
            nodes = int(os.environ.get("SLURM_NNODES", "1"))
            each = total // nodes
        else:
            return cls(devices or 1, 1, "")
        if each * nodes != total:
            raise wrong_value(
                "processes",
                total,
                "the same number on each machine",
                f"Change the command of {launcher}.",
            )
        if devices not in (None, each):
            expected = f"{each}, as {launcher} started them, or left out"
            raise wrong_value("devices", devices, expected)
        return cls(each, nodes, launcher)

    def lightning_environment_overrides(self) -> list[ClusterEnvironment]:
        """Return the environment plugins to pass to the Lightning trainer.

        They correct how Lightning handles SLURM. The list is empty if its defaults are correct.
        """
        if self.launcher == "srun":
            # Requeueing would save a checkpoint within an epoch.
            return [SLURMEnvironment(auto_requeue=False)]
        if not self.launcher and "SLURM_JOB_ID" in os.environ:
            # The script of a job is one process, however many tasks the job has.
            return [LightningEnvironment()]
        return []


def is_first_process() -> bool:
    """Return True in the process of rank 0, the only process that writes files and prints."""
    return getattr(rank_zero_only, "rank", 0) == 0
