"""Activation checkpointing of layers whose output depends on thread-local values."""

import copy
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from torch.utils import checkpoint as torch_checkpoint

T = TypeVar("T")


def restore_thread_locals_in_checkpoints(state: threading.local) -> bool:
    """Make `torch.utils.checkpoint` save and restore the attributes of a thread-local object.

    Activation checkpointing runs layers a second time in the backward pass. This may happen in
    another thread, or after the attributes have changed, so that the layers would compute something
    else. PyTorch itself restores only the random state and autocast.

    Args:
        state: Thread-local object. When the forward pass enters a checkpoint, its attributes are
            copied (shallow copies). They are restored during each recomputation.

    Returns:
        True on success. False if this version of PyTorch lacks the undocumented classes that this
        function patches.
    """
    checkpoint: Any = torch_checkpoint
    if not (hasattr(checkpoint, "CheckpointFunction") and hasattr(checkpoint, "_CheckpointFrame")):
        return False
    reentrant_forward = checkpoint.CheckpointFunction.forward
    make_frame = checkpoint._CheckpointFrame.__init__

    def with_saved_values(function: Callable[..., T]) -> Callable[..., T]:
        saved = _copy_values(vars(state))

        def call(*args: object, **kwargs: object) -> T:
            current = dict(vars(state))
            vars(state).update(_copy_values(saved))
            try:
                return function(*args, **kwargs)
            finally:
                vars(state).update(current)

        return call

    @wraps(reentrant_forward)
    def forward(ctx: Any, function: Callable, *args: object) -> object:
        return reentrant_forward(ctx, with_saved_values(function), *args)

    @wraps(make_frame)
    def init(self: object, recompute: Callable, *args: object, **kwargs: object) -> None:
        make_frame(self, with_saved_values(recompute), *args, **kwargs)

    checkpoint.CheckpointFunction.forward = staticmethod(forward)
    checkpoint._CheckpointFrame.__init__ = init
    return True


def _copy_values(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: copy.copy(value) for name, value in attributes.items()}
