import atexit
import gc
import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module

import jaxtyping
import pytest
import torch
from hypothesis import settings
from jaxtyping import _import_hook

from tests.annotations import Loader, annotations_unchecked, check

# Tests and the commands that they start use one thread, because several test processes may run.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
settings.register_profile("teka", derandomize=True, deadline=None, max_examples=25)
settings.load_profile("teka")
# This must happen before teka is imported.
jaxtyping.jaxtyped = check
_import_hook._JaxtypingLoader = Loader
# Garbage collection took a third of the time of the imports, whose objects all stay.
gc.disable()


def pytest_collection() -> None:
    # Runs and model files of some tests name the baselines.
    import_module("reproduction.baselines")


def pytest_collection_finish() -> None:
    gc.freeze()
    # Triton reports leaks if objects are still frozen at the end. Until then they stay frozen,
    # because pytest collects garbage several times, which takes seconds with so many objects.
    atexit.register(gc.unfreeze)
    gc.set_threshold(20_000)  # the default is 700
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def one_core() -> Iterator[None]:
    """Let libraries see one core, so that they start one thread."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "cpu_count", lambda: 1)
        patched.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
        yield


@pytest.fixture
def unchecked_annotations() -> Iterator[None]:
    """Switch off the checks of annotations, which would raise errors before teka does."""
    with annotations_unchecked():
        yield


@pytest.fixture(scope="module")
def unchecked_annotations_in_module() -> Iterator[None]:
    """Switch off the checks of annotations in a file whose functions other tests check.

    The checks took two thirds of the time of files with many small calls.
    """
    with annotations_unchecked():
        yield


@pytest.fixture
def command_line() -> Callable[[list[str]], int]:
    """Return the function that runs a command of teka."""
    from teka.cli import main

    return main


@pytest.fixture
def fails(command_line, capsys) -> Callable[..., str]:
    """Run a command that must fail with exit code 2, and return its single line of error."""

    def run(*arguments: object) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            sys.exit(command_line([str(argument) for argument in arguments]))
        assert stopped.value.code == 2
        error = capsys.readouterr().err
        assert error.endswith("\n")
        assert error.count("\n") == 1, error
        return error

    return run


@pytest.fixture(scope="session")
def tiny():
    """Return a run that trains within a second. Its accuracy is not tested."""
    from teka.training import Run

    sizes = {"dim": 8, "depth": 2, "heads": 2, "epochs": 2, "batch_size": 32}
    return Run.from_fields(
        image_size=8, train_size=96, validation_size=40, kernel="positive", **sizes
    )


@pytest.fixture(scope="session")
def trained(tiny, tmp_path_factory):
    """Return the tiny run after its training."""
    from teka.training import restore, train

    folder = tmp_path_factory.mktemp("trained") / "run"
    train(tiny, folder, command="teka train")
    return restore(folder)
