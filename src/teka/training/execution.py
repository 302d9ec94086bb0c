"""Execution of a training run: devices, processes, compilation and precision."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
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
COMPILE = ("auto", "on", "off")
# Compilation takes one or two minutes of a core, and saves a tenth to a third of each step.
MIN_STEPS_TO_COMPILE = 5000


@dataclass(frozen=True)
class Execution:
    """Devices of a training run and options for speed and memory.

    These options change results only by rounding and by the random draws of dropout. A run can be
    resumed with other options.

    >>> import torch, teka
    >>> from teka.training import Execution
    >>> block = teka.nn.TransformerBlock(8, 2)
    >>> Execution(activation_checkpointing=True).prepare(block, num_steps=10)
    >>> block(torch.randn(1, 6, 8), teka.Grid((2, 3))).sum().backward()
    >>> all(weights.grad is not None for weights in block.parameters())
    True

    Args:
        accelerator: "auto" (a GPU if there is one), "cpu", "gpu" or "mps".
        devices: Number of processes on each machine, each with its own device. By default the
            number that torchrun or srun started, or 1.
        num_nodes: Number of machines. On each of them, torchrun or srun starts the same command.
        accumulate: Number of parts into which each process divides its images of a step. More parts
            need less memory.
        activation_checkpointing: Compute the activations of blocks again in the backward pass. This
            needs less memory and more time.
        compile: Compile the model with torch.compile: "on", "off", or "auto" for runs of at least
            5,000 steps on machines with a compiler.

    Raises:
        ValueError: An argument is out of range, or an option does not fit the machine or the model.
    """

    accelerator: str = "auto"
    devices: int | None = None
    num_nodes: int | None = None
    accumulate: int = 1
    activation_checkpointing: bool = False
    compile: str = "auto"

    def __post_init__(self) -> None:
        check_name("accelerator", self.accelerator, ACCELERATORS)
        check_name("compile", self.compile, COMPILE)
        check_sizes({"accumulate": self.accumulate})
        check_sizes({"devices": self.devices, "num_nodes": self.num_nodes}, or_none=True)

    @property
    def uses_cuda(self) -> bool:
        """True if the run is trained on CUDA devices."""
        return self.accelerator in ("auto", "gpu") and torch.cuda.is_available()

    def prepare(self, model: nn.Module, num_steps: int) -> None:
        """Compile a model in place and turn on activation checkpointing.

        Args:
            model: Model.
            num_steps: Number of steps of the run.

        Raises:
            ValueError: `activation_checkpointing` for a model without transformer blocks.
        """
        if self.activation_checkpointing:
            blocks = [module for module in model.modules() if isinstance(module, TransformerBlock)]
            if not blocks:
                expected = f"False for {type(model).__name__}, which has no transformer blocks"
                raise wrong_value("activation_checkpointing", True, expected)
            for block in blocks:
                object.__setattr__(block, "forward", MethodType(_checkpointed_forward, block))
        pays_off = num_steps >= MIN_STEPS_TO_COMPILE and _has_compiler(self.uses_cuda)
        if self.compile == "on" or (self.compile == "auto" and pays_off):
            # Each shape is compiled for itself, because kernels of unknown sizes are slower.
            model.compile(dynamic=False)

    def resolve_precision(self, precision: str) -> str:
        """Return the precision of matrix products: "auto" is replaced by the best of the device.

        Raises:
            ValueError: "float16" without a GPU.
        """
        if precision == "float16" and not self.uses_cuda:
            raise wrong_value("precision", precision, "'float32', 'bfloat16' or 'auto' on a CPU")
        if precision != "auto":
            return precision
        if self.uses_cuda:
            is_fast = torch.cuda.get_device_capability() >= (8, 0)
        else:
            is_fast = self.accelerator in ("auto", "cpu") and _has_fast_bfloat16()
        return "bfloat16" if is_fast else "float32"


def _checkpointed_forward(block: TransformerBlock, *arguments: Any, **named: Any) -> Any:
    """Compute a block without keeping its activations. A copy of the block uses its own weights."""
    forward = partial(type(block).forward, block)
    if not torch.is_grad_enabled():
        return forward(*arguments, **named)
    return checkpoint(forward, *arguments, use_reentrant=False, **named)


def _has_compiler(uses_cuda: bool) -> bool:
    """Return True if torch.compile has what it needs on this machine."""
    if uses_cuda:
        return find_spec("triton") is not None
    compilers = (os.environ.get("CXX", "c++"), "g++", "clang++")
    return any(shutil.which(compiler) for compiler in compilers)


def _has_fast_bfloat16() -> bool:
    """Return True if the CPU multiplies matrices of bfloat16 in hardware."""
    return torch.cpu._is_avx512_bf16_supported()  # AMX has these instructions too


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
        """Return the processes that a launcher started, or the given numbers without a launcher.

        Raises:
            ValueError: The numbers differ from those of the launcher.
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
        """Return the environment for Lightning where Lightning would detect the wrong one."""
        if self.launcher == "srun":
            # Requeueing would save a checkpoint within an epoch.
            return [SLURMEnvironment(auto_requeue=False)]
        if not self.launcher and "SLURM_JOB_ID" in os.environ:
            # The script of a job is one process, however many tasks the job has.
            return [LightningEnvironment()]
        return []


def process_rank(new: int | None = None) -> int:
    """Return the rank of this process among those that Lightning started. Set it if `new` is given.

    A single process has rank 0.
    """
    rank = getattr(rank_zero_only, "rank", 0)
    if new is not None:
        setattr(rank_zero_only, "rank", new)  # noqa: B010, Lightning does not declare it
    return rank


def is_first_process() -> bool:
    """Return True in the process that writes files and prints."""
    return process_rank() == 0


@contextlib.contextmanager
def without_launcher() -> Iterator[None]:
    """Train alone within this context, even if torchrun or srun started the process."""
    variables = dict(os.environ)
    ranks = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    for name in variables:
        if name.startswith(("SLURM_", "TORCHELASTIC_")) or name in ranks:
            del os.environ[name]
    rank = process_rank(0)
    try:
        yield
    finally:
        os.environ |= variables
        process_rank(rank)
