"""Versions, hardware and date of a measurement."""

import datetime
import os
import platform
from pathlib import Path

import torch

import teka


def provenance(command: str) -> dict[str, str]:
    """Return how a result was made: command, versions of teka and PyTorch, hardware and date."""
    return {
        "command": command,
        "teka": teka.__version__,
        "torch": torch.__version__,
        "hardware": describe_hardware(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    }


def describe_hardware() -> str:
    """Describe the processor, its cores, the threads of PyTorch, and the GPU if there is one."""
    threads = torch.get_num_threads()
    unit = "thread" if threads == 1 else "threads"
    cpu = f"{_processor()}, {os.cpu_count()} cores, {threads} {unit}"
    return f"{cpu}; {torch.cuda.get_device_name()}" if torch.cuda.is_available() else cpu


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
