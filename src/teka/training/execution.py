"""How a training is carried out: what changes its numbers by rounding alone."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from teka.errors import unknown_name, wrong_value
from teka.nn import TransformerBlock

ACCELERATORS = ("auto", "cpu", "gpu", "mps")


@dataclass(frozen=True)
class Execution:
    """On what a run is trained and in how many parts; a run may go on with another.

    A step has the run's `batch_size` images for any number of processes and parts, each image counts the same, and the
    order of images is the same. Dropout differs: each part draws its own.

    Args:
        accelerator: "auto", "cpu", "gpu" or "mps".
        devices: Number of processes on a machine, each with a device of its own; by default as many as torchrun or srun
            started, and 1 without them.
        num_nodes: Number of machines, each of which is given the same command by torchrun or srun; by default theirs.
        accumulate: Parts that a process takes its images of a step in, one after another, for less memory.
        activation_checkpointing: Whether what blocks compute is computed again in the backward pass instead of kept.
        compile: Whether the model is compiled with torch.compile.

    Raises:
        ValueError: A value out of range, or an unknown name.
    """

    accelerator: str = "auto"
    devices: int | None = None
    num_nodes: int | None = None
    accumulate: int = 1
    activation_checkpointing: bool = False
    compile: bool = False

    def __post_init__(self) -> None:
        if self.accelerator not in ACCELERATORS:
            raise unknown_name("accelerator", self.accelerator, ACCELERATORS)
        for argument in ("devices", "num_nodes", "accumulate"):
            value = getattr(self, argument)
            if value is None and argument != "accumulate":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise wrong_value(argument, value, "a whole number of at least 1")

    def prepare(self, model: nn.Module) -> None:
        """Compile a model and make its blocks compute again what they did not keep, as asked for.

        Args:
            model: The model, whose parameters and their names stay.

        Raises:
            ValueError: Blocks are to compute again and the model has none.
        """
        if self.activation_checkpointing:
            blocks = [module for module in model.modules() if isinstance(module, TransformerBlock)]
            if not blocks:
                expected = f"False for {type(model).__name__}, which has no transformer blocks"
                raise wrong_value("activation_checkpointing", True, expected)
            for block in blocks:
                _compute_again(block)
        if self.compile:
            model.compile()


def _compute_again(block: TransformerBlock) -> None:
    """Let a block keep its input alone; only what it is called with by position is passed on."""
    plain: Callable[..., Tensor] = block.forward

    def forward(*arguments: object) -> Tensor:
        again = checkpoint(plain, *arguments, use_reentrant=False) if torch.is_grad_enabled() else plain(*arguments)
        assert isinstance(again, Tensor)
        return again

    object.__setattr__(block, "forward", forward)
