"""Trainings in separate processes, forked from a server that has already imported the slow packages."""

import multiprocessing
import os
from collections.abc import Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from teka.training import Execution, Run, train

SERVER = multiprocessing.get_context("forkserver")
# The imports take longer than the tests. The server is shared with the workers of Dask.
PRELOADED = ["lightning.pytorch", "teka.training", "reproduction.study"]


def start_training(
    run: Run,
    folder: Path,
    execution: Execution,
    environment: Mapping[str, str] | None = None,
    **options: bool,
) -> BaseProcess:
    """Start a training in another process.

    A fork of this process may hang because it has threads. The server has none.
    """
    SERVER.set_forkserver_preload(PRELOADED)
    arguments = (run, folder, execution, dict(environment or {}), options)
    process = SERVER.Process(target=_train, args=arguments)
    process.start()
    return process


def _train(
    run: Run,
    folder: Path,
    execution: Execution,
    environment: Mapping[str, str],
    options: Mapping[str, Any],
) -> None:
    os.environ.update(environment)
    torch.set_num_threads(1)
    train(run, folder, execution=execution, **options)
