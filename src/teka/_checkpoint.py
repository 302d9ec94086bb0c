"""Support for context managers in activation checkpointing."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, TypeAlias, TypeVar

from torch.utils import checkpoint as torch_checkpoint

T = TypeVar("T")
Capture: TypeAlias = Callable[[], Callable[[], AbstractContextManager[object]]]


def restore_in_recomputation(capture: Capture) -> bool:
    """Make `torch.utils.checkpoint` recompute under the ambient state of the forward pass.

    PyTorch itself restores only the random state and autocast. The backward pass may run after a
    context manager has been left, within another one, or in another thread.

    Args:
        capture: Function that reads the state of this thread. It is called when a checkpoint is
            entered, and returns a function that makes a context manager with that state. Each
            recomputation runs within this context manager.

    Returns:
        True if it worked; False if this version of PyTorch lacks the undocumented classes that
        this function wraps.
    """
    checkpoint: Any = torch_checkpoint
    if not (hasattr(checkpoint, "CheckpointFunction") and hasattr(checkpoint, "_CheckpointFrame")):
        return False
    reentrant_forward = checkpoint.CheckpointFunction.forward
    make_frame = checkpoint._CheckpointFrame.__init__

    def recomputed(function: Callable[..., T]) -> Callable[..., T]:
        restore = capture()

        def call(*args: object, **kwargs: object) -> T:
            with restore():
                return function(*args, **kwargs)

        return call

    @wraps(reentrant_forward)
    def forward(ctx: Any, function: Callable, *args: object) -> object:
        return reentrant_forward(ctx, recomputed(function), *args)

    @wraps(make_frame)
    def init(self: object, recompute: Callable, *args: object, **kwargs: object) -> None:
        make_frame(self, recomputed(recompute), *args, **kwargs)

    checkpoint.CheckpointFunction.forward = staticmethod(forward)
    checkpoint._CheckpointFrame.__init__ = init
    return True
