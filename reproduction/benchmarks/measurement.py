"""Functions for benchmark scripts: timing, result files and the command line."""

import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cyclopts
import pandas as pd
import torch
from torch.utils.benchmark import timer

from teka.files import write_json
from teka.provenance import gather_provenance

MIN_ROUNDS = 3


def measure_median_times(
    steps: Mapping[str, Callable[[], object]], seconds: float, clock: Callable[[], float] = timer
) -> dict[str, float]:
    """Measure the median time of several functions in seconds, with interleaved calls.

    Interleaving the calls spreads slow moments of the machine over all functions. Each function is
    first called once without timing, because it may compile.

    Args:
        steps: Functions to time, by name.
        seconds: Mean total time per function. Each function is called at least three times.
        clock: Function that returns the time. The default clock synchronizes with the GPU.
    """
    for step in steps.values():
        step()
    times = []
    end = clock() + seconds * len(steps)
    while len(times) < MIN_ROUNDS or clock() < end:
        times.append({})
        for name, step in steps.items():
            start = clock()
            step()
            times[-1][name] = clock() - start
    return pd.DataFrame(times).median().to_dict()


def save_results(out: Path, **results: object) -> None:
    """Write results to a JSON file, with the command, software versions, hardware and date."""
    module = f"reproduction.benchmarks.{Path(sys.argv[0]).stem}"
    command = shlex.join(["python", "-m", module, *sys.argv[1:]])
    write_json(out, {**gather_provenance(command), **results})


def run_script(main: Callable[..., Any]) -> None:
    """Run `main` with its command-line options, on one thread and with a fixed random seed."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    app = cyclopts.App(default_parameter=cyclopts.Parameter(consume_multiple=True))
    app.default(main)
    app()
