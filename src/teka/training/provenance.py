"""What a number was measured with."""

import datetime
import os
import platform
from pathlib import Path

import torch

import teka


def provenance(command: str) -> dict[str, object]:
    """Command, versions, hardware and date.

    Args:
        command: The command that was given.
    """
    return {
        "command": command,
        "teka": teka.__version__,
        "torch": torch.__version__,
        "hardware": hardware(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    }


def hardware() -> str:
    """Processor or GPU, and how many threads torch uses, in words."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{_processor()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
