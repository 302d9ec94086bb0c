"""How a training is carried out, by which processes and in how many parts: its numbers change by rounding alone."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any, NamedTuple

import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.utilities import rank_zero_only
from torch import nn
from torch.utils.checkpoint import checkpoint

from teka.checks import check_name, check_sizes
from teka.errors import wrong_value
from teka.nn import TransformerBlock

ACCELERATORS = ("auto", "cpu", "gpu", "mps")


@dataclass(frozen=True)
class Execution:
    """On what a run is trained and in how many parts; a run may be resumed with another.

    A step has the run's `batch_size` images in the same order for any number of processes and parts, but dropout
    differs: each part draws its own.

    >>> import torch, teka
    >>> from teka.training import Execution
    >>> block = teka.nn.TransformerBlock(8, 2)
    >>> Execution(activation_checkpointing=True).prepare(block)
    >>> block(torch.randn(1, 6, 8), teka.Grid((2, 3))).sum().backward()  # keeps less and computes it again
    >>> all(weights.grad is not None for weights in block.parameters())
    True

    Args:
        accelerator: "auto", "cpu", "gpu" or "mps".
        devices: Number of processes on a machine, each with a device of its own; by default as many as torchrun or srun
            started, and 1 without them.
        num_nodes: Number of machines, each of which is given the same command by torchrun or srun; by default theirs.
        accumulate: Parts that a process takes its images of a step in, one after another, for less memory.
        activation_checkpointing: Whether what blocks compute is computed again in the backward pass instead of kept.
        compile: Whether the model is compiled with torch.compile.
    """

    accelerator: str = "auto"
    devices: int | None = None
    num_nodes: int | None = None
    accumulate: int = 1
    activation_checkpointing: bool = False
    compile: bool = False

    def __post_init__(self) -> None:
        check_name("accelerator", self.accelerator, ACCELERATORS)
        check_sizes({"accumulate": self.accumulate})
        check_sizes({"devices": self.devices, "num_nodes": self.num_nodes}, or_none=True)

    def prepare(self, model: nn.Module) -> None:
        """Compile a model and make its blocks, which it must have, compute again what they did not keep, as asked."""
        if self.activation_checkpointing:
            blocks = [module for module in model.modules() if isinstance(module, TransformerBlock)]
            if not blocks:
                expected = f"False for {type(model).__name__}, which has no transformer blocks"
                raise wrong_value("activation_checkpointing", True, expected)
            for block in blocks:
                object.__setattr__(block, "forward", MethodType(forward, block))
        if self.compile:
            model.compile()


def forward(block: TransformerBlock, *arguments: Any, **named: Any) -> Any:
    """A block's own method, which computes again what it did not keep; a copied block has that of the copy."""
    plain = partial(type(block).forward, block)
    if not torch.is_grad_enabled():
        return plain(*arguments, **named)
    return checkpoint(plain, *arguments, use_reentrant=False, **named)


class Processes(NamedTuple):
    """How many processes train together on how many machines, and what started them: "torchrun", "srun" or ""."""

    devices: int
    num_nodes: int
    launcher: str

    @classmethod
    def of(cls, devices: int | None, num_nodes: int | None) -> "Processes":
        """As many as a launcher started, which must be those asked for; without one, these, and else 1."""
        if TorchElasticEnvironment.detect():
            total, each = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
            started = cls(each, total // each, "torchrun")
        elif "SLURM_STEP_ID" in os.environ and SLURMEnvironment.detect():
            total, nodes = int(os.environ["SLURM_NTASKS"]), int(os.environ.get("SLURM_NNODES", "1"))
            started = cls(total // nodes, nodes, "srun")
        else:
            return cls(devices or 1, num_nodes or 1, "")
        if started.devices * started.num_nodes != total:
            expected = f"equally many on each of the machines; {started.launcher} started them"
            raise wrong_value("processes", total, expected)
        for argument, asked in (("devices", devices), ("num_nodes", num_nodes)):
            number = getattr(started, argument)
            if asked is not None and asked != number:
                raise wrong_value(
                    argument, asked, f"{number}, as {started.launcher} started them, or left out"
                )
        return started

    def environments(self) -> list[ClusterEnvironment]:
        """What Lightning is told of the launcher where it does not find out by itself."""
        if self.launcher == "srun":
            # Lightning would save the middle of an epoch on a signal, and put the job into the queue again itself.
            return [SLURMEnvironment(auto_requeue=False)]
        if not self.launcher and "SLURM_JOB_ID" in os.environ:
            return [
                LightningEnvironment()
            ]  # a job's own shell: the job's other tasks are not this training's
        return []


def process_rank(new: int | None = None) -> int:
    """Return the rank of this process among those that Lightning started, 0 if it is the only one; set `new` if given."""
    rank = getattr(rank_zero_only, "rank", 0)
    if new is not None:
        setattr(rank_zero_only, "rank", new)  # noqa: B010, Lightning does not declare it
    return rank


def is_first_process() -> bool:
    """Whether this is the process that writes and prints."""
    return process_rank() == 0


@contextlib.contextmanager
def without_launcher() -> Iterator[None]:
    """Let this process train by itself for as long as the block runs, whatever torchrun or srun started it with."""
    variables = dict(os.environ)
    for name in variables:
        if name.startswith(("SLURM_", "TORCHELASTIC_")) or name in (
            "RANK",
            "LOCAL_RANK",
            "WORLD_SIZE",
        ):
            del os.environ[name]
    before = process_rank(0)
    try:
        yield
    finally:
        os.environ |= variables
        process_rank(before)
