"""What has room in memory: sizes that are refused before anything of them is made."""

import os
from collections.abc import Callable

import torch
from torch import Tensor, nn

from teka.errors import wrong_value

MAX_NUM_TENSORS = 30_000  # of a model
MAX_IMAGE_PIXELS = 50_000_000  # pixels of a picture or of a model's images


def check_memory(argument: str, came: object, num_bytes: int, what: str) -> None:
    """Check that the machine has room for so many bytes of `what`, on which `argument` decides, before it is made."""
    memory = memory_bytes()
    if num_bytes > memory:
        expected = f"one that this machine has room for: {what} of {num_bytes / 1e9:,.0f} GB, {memory / 1e9:,.0f} GB here"
        raise wrong_value(argument, came, expected)


def memory_bytes() -> int:
    """Bytes of the machine's memory, a very large number where it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2**63


class TooManyElementsError(ValueError):
    """A model has more numbers than it may have."""


def count_elements(make: Callable[[], nn.Module], most: int) -> int:
    """Count the numbers of the model that `make` makes, without memory; too many raise `TooManyElementsError`."""
    count = tensors = 0

    def add(module: nn.Module, name: str, tensor: Tensor | None) -> None:
        nonlocal count, tensors
        tensors += 1
        count += 0 if tensor is None else tensor.numel()
        if tensors > MAX_NUM_TENSORS:
            raise TooManyElementsError(f"more than {MAX_NUM_TENSORS:,} tensors")
        if count > most:
            raise TooManyElementsError(f"more than {most:,} numbers")

    on = nn.modules.module
    handles = [
        on.register_module_parameter_registration_hook(add),
        on.register_module_buffer_registration_hook(add),
    ]
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            make()
    finally:
        for handle in handles:
            handle.remove()
    return count
