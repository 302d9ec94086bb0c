import atexit
import gc
import os
from collections.abc import Iterator
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
