"""The processes that train together: how many there are, what started them, and which one writes."""

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple

from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.utilities import rank_zero_only

from teka.errors import wrong_value


class Processes(NamedTuple):
    """How many processes train together.

    Args:
        devices: Processes on a machine, each with a device of its own.
        num_nodes: Machines.
        launcher: What started them: "torchrun", "srun", or "" if they are to be started.
    """

    devices: int
    num_nodes: int
    launcher: str

    @classmethod
    def of(cls, devices: int | None, num_nodes: int | None) -> "Processes":
        """As many as a launcher started; without one, as many as asked for, and else 1.

        Args:
            devices: Processes asked for on a machine, or None.
            num_nodes: Machines asked for, or None.

        Raises:
            ValueError: The launcher started other numbers than those asked for, or not equally many on every machine.
        """
        started = _started()
        if started is None:
            return cls(devices or 1, num_nodes or 1, "")
        for argument, asked in (("devices", devices), ("num_nodes", num_nodes)):
            number = getattr(started, argument)
            if asked is not None and asked != number:
                raise wrong_value(argument, asked, f"{number}, as {started.launcher} started them, or to be left out")
        return started

    def environments(self) -> list[ClusterEnvironment]:
        """What Lightning is told of the launcher; nothing where it finds out by itself."""
        if self.launcher == "srun":
            # Lightning would save the middle of an epoch on a signal, and put the job into the queue again itself.
            return [SLURMEnvironment(auto_requeue=False)]
        if not self.launcher and "SLURM_JOB_ID" in os.environ:
            return [LightningEnvironment()]  # a job's own shell: the job's other tasks are not this training's
        return []


def is_first_process() -> bool:
    """Whether this is the process that writes and prints."""
    return getattr(rank_zero_only, "rank", 0) == 0


@contextlib.contextmanager
def without_launcher() -> Iterator[None]:
    """Let this process train by itself for as long as the block runs, whatever torchrun or srun started it with."""
    variables = dict(os.environ)
    for name in variables:
        if name.startswith(("SLURM_", "TORCHELASTIC_")) or name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
            del os.environ[name]
    before = getattr(rank_zero_only, "rank", 0)
    setattr(rank_zero_only, "rank", 0)  # noqa: B010, Lightning declares it nowhere
    try:
        yield
    finally:
        os.environ |= variables
        setattr(rank_zero_only, "rank", before)  # noqa: B010


def _started() -> Processes | None:
    if TorchElasticEnvironment.detect():
        total, devices = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
        launcher, num_nodes = "torchrun", total // devices
    elif "SLURM_STEP_ID" in os.environ and SLURMEnvironment.detect():
        total, num_nodes = int(os.environ["SLURM_NTASKS"]), int(os.environ.get("SLURM_NNODES", "1"))
        launcher, devices = "srun", total // num_nodes
    else:
        return None
    if devices * num_nodes != total:
        raise wrong_value("processes", total, f"equally many on each of the machines; {launcher} started them")
    return Processes(devices, num_nodes, launcher)
