import gc
import os
from collections.abc import Iterator

import jaxtyping
import pytest
import torch
from hypothesis import settings
from jaxtyping import _import_hook
from tests.annotations import Loader, annotations_unchecked, check

# One thread here and in the commands that tests start: threads of several processes wait for each other.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
settings.register_profile("teka", derandomize=True, deadline=None, max_examples=25)
settings.load_profile("teka")
# Before teka is imported.
jaxtyping.jaxtyped = check
_import_hook._JaxtypingLoader = Loader
# What is imported stays: to look through it again and again for garbage was a third of the time that importing took.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(20_000)  # instead of 700
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # or Triton's library tells of hundreds of leaks


@pytest.fixture(scope="session", autouse=True)
def one_core() -> Iterator[None]:
    """What divides the cores among processes gives each of them one thread too."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "cpu_count", lambda: 1)
        patched.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
        yield


@pytest.fixture
def unchecked_annotations() -> Iterator[None]:
    """Without the checks of annotations, which are on in the tests only and would raise before teka's own errors."""
    with annotations_unchecked():
        yield


@pytest.fixture(scope="module")
def unchecked_annotations_in_module() -> Iterator[None]:
    """The same for a whole file of many cases, whose functions other files call with the checks on.

    Of a test that calls hundreds of small functions the checks were two thirds of the time.
    """
    with annotations_unchecked():
        yield
