"""Threads of torch for what a study trains and times."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from teka.errors import wrong_value


def share_of_cores(processes: int) -> int:
    """Threads of each of so many processes side by side, at least 1.

    Args:
        processes: Number of processes.

    Raises:
        ValueError: No process, or more than 16 for each core.
    """
    cores = os.cpu_count() or 1
    if not 1 <= processes <= 16 * cores:
        raise wrong_value("processes", processes, f"at least 1 and at most {16 * cores}, 16 for each core")
    return max(1, cores // processes)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch work with so many threads for as long as the block runs.

    Args:
        count: Number of threads.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
