"""Count the bytes of the tensors that a piece of code allocates."""

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocations(TorchDispatchMode):
    """A context that counts the bytes of all tensors that are allocated in it and not yet freed, and their peak.

    Every operation passes through it, those of the backward pass too. A storage that an operation returns and that was
    not among its inputs is new; it counts until nothing refers to it any more, be it a variable or what autograd keeps
    for the backward pass, what an `autograd.Function` keeps included. Memory that an operation takes and frees within
    itself is not seen: the tiles of torch's fused attention on a CPU, whose size does not grow with the tokens, and a
    Fourier transform's copy of its input.
    """

    def __init__(self) -> None:
        super().__init__()
        self.allocated = 0
        self.peak = 0
        self._known: weakref.WeakSet[UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Run an operation and count what it allocated."""
        named = dict(kwargs or {})
        self._known.update(_storages((args, named)))
        result = func(*args, **named)
        for storage in _storages(result):
            if storage not in self._known:
                self._known.add(storage)
                self._allocate(storage)
        return result

    def _allocate(self, storage: UntypedStorage) -> None:
        self.allocated += storage.nbytes()
        self.peak = max(self.peak, self.allocated)
        weakref.finalize(storage, self._free, storage.nbytes()).atexit = False

    def _free(self, num_bytes: int) -> None:
        self.allocated -= num_bytes


def _storages(tree: object) -> list[UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
