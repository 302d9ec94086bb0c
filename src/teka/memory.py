"""Memory size of the machine, and number of elements of a model."""

import os
from collections.abc import Callable

import torch
from torch import Tensor, nn

from teka.errors import wrong_value

MAX_NUM_TENSORS = 30_000  # in a model
MAX_IMAGE_PIXELS = 50_000_000


def check_fits_in_memory(argument: str, value: object, num_bytes: int, contents: str) -> None:
    """Raise an error if objects of a given size do not fit into the memory of the machine.

    Args:
        argument: Name of the argument that determines the size, for the error message.
        value: Value of the argument.
        num_bytes: Number of bytes that the objects need.
        contents: Name of the objects in the plural, such as "arrays".

    Raises:
        ValueError: The machine has less memory.
    """
    memory = memory_bytes()
    if num_bytes > memory:
        needed = (
            f"{contents} need {num_bytes / 1e9:,.0f} GB, this machine has {memory / 1e9:,.0f} GB"
        )
        raise wrong_value(argument, value, f"small enough for the memory ({needed})")


def memory_bytes() -> int:
    """Return the size of the machine's main memory in bytes.

    Return 2^63 if the operating system does not report the size.
    """
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2**63


def count_parameters(model: nn.Module) -> int:
    """Return the total number of elements of the parameters of a model."""
    return sum(parameter.numel() for parameter in model.parameters())


class TooManyElementsError(ValueError):
    """Error of `count_elements` for a model with too many tensors or too many elements."""


def count_elements(create_model: Callable[[], nn.Module], max_elements: int) -> int:
    """Return the number of elements of a model's parameters and buffers, without allocating them.

    Args:
        create_model: Function that creates the model. It is called on the meta device.
        max_elements: Largest allowed number of elements.

    Raises:
        TooManyElementsError: The model has more elements, or more than `MAX_NUM_TENSORS` tensors.
    """
    num_elements = num_tensors = 0

    def add(module: nn.Module, name: str, tensor: Tensor | None) -> None:
        nonlocal num_elements, num_tensors
        num_tensors += 1
        num_elements += 0 if tensor is None else tensor.numel()
        if num_tensors > MAX_NUM_TENSORS:
            raise TooManyElementsError(f"more than {MAX_NUM_TENSORS:,} tensors")
        if num_elements > max_elements:
            raise TooManyElementsError(f"more than {max_elements:,} elements")

    handles = [
        nn.modules.module.register_module_parameter_registration_hook(add),
        nn.modules.module.register_module_buffer_registration_hook(add),
    ]
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            create_model()
    finally:
        for handle in handles:
            handle.remove()
    return num_elements
