"""Execution options of a training run: devices, speed and memory."""

import os
import shutil
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from teka.checks import check_name, check_sizes
from teka.errors import wrong_value
from teka.nn import TransformerBlock

# Compilation takes one or two minutes of a core, and saves a tenth to a third of each step.
MIN_STEPS_TO_COMPILE = 5000


@dataclass(frozen=True)
class Execution:
    """Options for the devices, speed and memory of a training run.

    With other options, the trained model differs only by rounding errors and by the random numbers
    of dropout. An interrupted run can therefore resume with other options.

    >>> import torch, teka
    >>> from teka.training import Execution
    >>> block = teka.nn.TransformerBlock(8, 2)
    >>> Execution(activation_checkpointing=True).checkpoint_and_compile(block, num_steps=10)
    >>> block(torch.randn(1, 6, 8), teka.Grid((2, 3))).sum().backward()
    >>> all(weights.grad is not None for weights in block.parameters())
    True

    Args:
        accelerator: "auto" (a GPU if there is one), "cpu", "gpu" or "mps".
        devices: Number of processes per machine, each with its own device. The default is the
            number that torchrun or srun started, or else 1. To use several machines, start the same
            command with torchrun or srun on each machine.
        accumulate: Number of micro-batches per step in each process, whose gradients are
            accumulated. More micro-batches need less memory.
        activation_checkpointing: Recompute the activations of transformer blocks in the backward
            pass. This needs less memory and more time.
        compile: Use of torch.compile: "on", "off", or "auto", which compiles runs of at least 5,000
            steps if the machine has a compiler.

    Raises:
        ValueError: An argument is unknown or out of range.
    """

    accelerator: str = "auto"
    devices: int | None = None
    accumulate: int = 1
    activation_checkpointing: bool = False
    compile: str = "auto"

    def __post_init__(self) -> None:
        check_name("accelerator", self.accelerator, ("auto", "cpu", "gpu", "mps"))
        check_name("compile", self.compile, ("auto", "on", "off"))
        check_sizes({"accumulate": self.accumulate})
        check_sizes({"devices": self.devices}, or_none=True)

    @property
    def uses_cuda(self) -> bool:
        """True if the run is trained on CUDA devices."""
        return self.accelerator in ("auto", "gpu") and torch.cuda.is_available()

    def checkpoint_and_compile(self, model: nn.Module, num_steps: int) -> None:
        """Apply the options `activation_checkpointing` and `compile` to a model, in place.

        With `compile="auto"`, the model is compiled only if the run has enough steps to make up for
        the compilation time.

        Args:
            model: Model to modify.
            num_steps: Total number of optimizer steps in the run.

        Raises:
            ValueError: `activation_checkpointing` is on, but the model has no transformer blocks.
        """
        if self.activation_checkpointing:
            blocks = [module for module in model.modules() if isinstance(module, TransformerBlock)]
            if not blocks:
                raise wrong_value(
                    "activation_checkpointing",
                    True,
                    f"False for {type(model).__name__}, which has no transformer blocks",
                )
            for block in blocks:
                object.__setattr__(block, "forward", MethodType(_forward_with_checkpoint, block))
        pays_off = num_steps >= MIN_STEPS_TO_COMPILE and _has_compiler(self.uses_cuda)
        if self.compile == "on" or (self.compile == "auto" and pays_off):
            # Each shape is compiled separately, because kernels for dynamic sizes are slower.
            model.compile(dynamic=False)

    def choose_precision(self, precision: str) -> str:
        """Return the precision of matrix products that the recipe's `precision` selects.

        "auto" selects "bfloat16" if the device supports it in hardware, and otherwise "float32".

        Raises:
            ValueError: `precision` is "float16", but the run does not use a GPU.
        """
        if precision == "float16" and not self.uses_cuda:
            raise wrong_value("precision", precision, "'float32', 'bfloat16' or 'auto' on a CPU")
        if precision != "auto":
            return precision
        if self.uses_cuda:
            is_fast = torch.cuda.get_device_capability() >= (8, 0)
        else:
            # Processors with AMX have the instructions of AVX-512 too.
            is_fast = self.accelerator in ("auto", "cpu") and torch.cpu._is_avx512_bf16_supported()
        return "bfloat16" if is_fast else "float32"


def _forward_with_checkpoint(block: TransformerBlock, *arguments: Any, **named: Any) -> Any:
    """Run the forward pass of a transformer block with activation checkpointing.

    The activations within the block are recomputed in the backward pass instead of stored.
    """
    # Take the method of the class, so that a copy of the block uses its own weights.
    forward = partial(type(block).forward, block)
    return checkpoint(forward, *arguments, use_reentrant=False, **named)


def _has_compiler(uses_cuda: bool) -> bool:
    """Return True if torch.compile finds its compiler: Triton, or a C++ compiler on CPU."""
    if uses_cuda:
        return find_spec("triton") is not None
    return any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++")))
