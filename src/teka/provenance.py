"""What a number was measured with."""

import datetime
import os
import platform
from pathlib import Path

import torch

import teka


def provenance(command: str) -> dict[str, str]:
    """The command that was given, versions, hardware and date."""
    return {
        "command": command,
        "teka": teka.__version__,
        "torch": torch.__version__,
        "hardware": hardware(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    }


def hardware() -> str:
    """Processor, its cores and the threads that torch uses, and the GPU if there is one, in words."""
    threads = torch.get_num_threads()
    words = f"{_processor()}, {os.cpu_count()} cores, {threads} {'thread' if threads == 1 else 'threads'}"
    return f"{words}; {torch.cuda.get_device_name()}" if torch.cuda.is_available() else words


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
