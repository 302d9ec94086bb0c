import os
from collections.abc import Iterator

import jaxtyping
import pytest
import torch
from hypothesis import settings

# One thread here and in the commands that tests start: threads of several processes wait for each other.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
settings.register_profile("teka", derandomize=True, deadline=None, max_examples=25)
settings.load_profile("teka")


@pytest.fixture
def as_users_run_it() -> Iterator[None]:
    """Without the checks of annotations, which are on in the tests only and would raise before teka's own errors."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
