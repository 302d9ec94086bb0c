"""Hold a library that reads checkpoints to tensors."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

_VARIABLE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


@contextmanager
def tensors_only() -> Iterator[None]:
    """Every `torch.load` within reads tensors only, whatever its caller asked for; objects are an error."""
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before
