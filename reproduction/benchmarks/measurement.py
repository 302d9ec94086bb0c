"""Timing, result files and the command line of the benchmark scripts."""

import shlex
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cyclopts
import torch
from torch.utils.benchmark import timer

from teka.files import write_json
from teka.provenance import provenance

MIN_ROUNDS = 3


def interleaved_medians(
    steps: Mapping[str, Callable[[], object]], seconds: float, clock: Callable[[], float] = timer
) -> dict[str, float]:
    """Time several functions in turns, and return the median time of each in seconds.

    The functions take turns, so that a slow moment of the machine affects all of them. Before, each
    function is called once, so that compilation is not timed.

    Args:
        steps: Functions to time, by name.
        seconds: Total time for each function. Each function is called at least three times.
        clock: Function that returns the time. The default waits until a GPU has finished.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    remaining = dict(steps)
    while remaining:
        for name, step in list(remaining.items()):
            start = clock()
            step()
            times[name].append(clock() - start)
            if sum(times[name]) >= seconds and len(times[name]) >= MIN_ROUNDS:
                del remaining[name]
    return {name: statistics.median(values) for name, values in times.items()}


def save_results(out: Path, **results: object) -> None:
    """Write results to a JSON file, with the command, the versions, the hardware and the date."""
    module = f"reproduction.benchmarks.{Path(sys.argv[0]).stem}"
    command = shlex.join(["python", "-m", module, *sys.argv[1:]])
    write_json(out, {**provenance(command), **results})


def run_script(main: Callable[..., Any]) -> None:
    """Run the `main` function of a script with the options of the command line.

    PyTorch uses one thread and a fixed seed.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    app = cyclopts.App(default_parameter=cyclopts.Parameter(consume_multiple=True))
    app.default(main)
    app()
