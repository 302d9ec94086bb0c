"""The most operations a second that a device does."""

import functools
import time
import warnings
from typing import NamedTuple

import torch
from lightning.fabric.utilities.throughput import get_available_flops
from torch import Generator, Tensor

MEASURED = "measured matrix product"
SIDE = {"cpu": 1024}
SIDE_OF_ACCELERATORS = 4096
SECONDS = 0.15


class Peak(NamedTuple):
    """The most operations a second that a device does.

    Args:
        flops: Operations a second, two for each multiply-add.
        source: Where the number is from, in words.
    """

    flops: float
    source: str


def peak(device: torch.device, dtype: torch.dtype) -> Peak:
    """Peak of a device for products of a type: of a GPU by its maker's figures, else that of a large product.

    The figures are those of Lightning's table, for products without sparsity.

    Args:
        device: The device.
        dtype: Type of the factors.
    """
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*(FLOPs not found|does not support).*")
            # The table's H100 NVL is a pair of cards.
            known = None if "H100 NVL" in name else get_available_flops(device, dtype)
        if known:
            return Peak(known, f"Lightning's table for {name}, {_name(dtype)}")
    return _measured(device, dtype, torch.get_num_threads())


@functools.cache
def _measured(device: torch.device, dtype: torch.dtype, num_threads: int) -> Peak:
    """The fastest of several products of square matrices."""
    side = SIDE.get(device.type, SIDE_OF_ACCELERATORS)
    generator = Generator().manual_seed(0)  # zeros and ones would take less power than numbers do
    left, right = (torch.randn(side, side, generator=generator).to(device, dtype) for _ in range(2))
    _seconds(left, right)
    begin, fastest = time.perf_counter(), float("inf")
    while time.perf_counter() - begin < SECONDS:
        fastest = min(fastest, _seconds(left, right))
    threads = f", {num_threads} {'thread' if num_threads == 1 else 'threads'}" if device.type == "cpu" else ""
    return Peak(2 * side**3 / fastest, f"{MEASURED}, {side} × {side}, {_name(dtype)}{threads}")


def _seconds(left: Tensor, right: Tensor) -> float:
    synchronize(left.device)
    since = time.perf_counter()
    torch.mm(left, right)
    synchronize(left.device)
    return time.perf_counter() - since


def synchronize(device: torch.device) -> None:
    """Wait until a device has done what it was given.

    Args:
        device: The device.
    """
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
