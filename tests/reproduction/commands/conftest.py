import importlib

import pytest

from teka.training import progress


@pytest.fixture(scope="module", autouse=True)
def few_measurements():
    """Neither measure the processor nor count operations in a training, which tests/training tests."""
    known = progress.Peak(1e11, progress.MEASURED)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(progress, "_measured", lambda *arguments: known)
        train_module = importlib.import_module("teka.training.train")
        patched.setattr(train_module, "training_flops_per_image", lambda *arguments: 10**6)
        patched.setattr("reproduction.heads.measure.CHANCE_DRAWS", 8)
        yield
