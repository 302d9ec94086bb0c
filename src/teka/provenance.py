"""Provenance of a result: the command, versions, hardware and date that produced it."""

import contextlib
import datetime
import os
import platform
from pathlib import Path

import torch

import teka


def gather_provenance(command: str) -> dict[str, str]:
    """Return the provenance of a result: how, where and when it was computed.

    The dictionary contains the command line, the versions of teka and PyTorch, the hardware and the
    date. The hardware is the CPU, the number of threads of PyTorch, and the GPU, if there is one.

    Args:
        command: Command line to record.
    """
    cores = os.cpu_count() or 1
    threads = torch.get_num_threads()
    counts = f"{cores} core{'s' * (cores != 1)}, {threads} thread{'s' * (threads != 1)}"
    hardware = f"{_get_processor_name()}, {counts}"
    if torch.cuda.is_available():
        hardware += f"; {torch.cuda.get_device_name()}"
    return {
        "command": command,
        "teka": teka.__version__,
        "torch": torch.__version__,
        "hardware": hardware,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    }


def _get_processor_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
