import importlib

import pytest

from teka.training import Run, restore, train

# A model and a training that take about a second: what is tested here is the way, not the accuracy.
TINY = Run.of(
    image_size=8,
    train_size=96,
    validation_size=40,
    dim=8,
    depth=2,
    heads=2,
    epochs=2,
    batch_size=32,
    kernel="positive",
)


@pytest.fixture(scope="module", autouse=True)
def few_measurements():
    """Skip the counting of operations in a training, which has its own tests."""
    with pytest.MonkeyPatch.context() as patched:
        train_module = importlib.import_module("teka.training.train")
        patched.setattr(train_module, "training_flops_per_image", lambda *arguments: 10**6)
        yield


@pytest.fixture(scope="session")
def tiny():
    return TINY


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(TINY, folder, command="teka train")
    return restore(folder)


@pytest.fixture(scope="session")
def dropping(tmp_path_factory):
    """The folder of a run with dropout and redrawn projections, so that a number more or less drawn would show."""
    folder = tmp_path_factory.mktemp("dropping") / "run"
    train(TINY.replace(epochs=3, dropout=0.2, redraw_every=4), folder)
    return folder


@pytest.fixture(scope="session")
def trained_on_canvas(tmp_path_factory):
    """A run whose images have a margin, so that they can be shifted without loss."""
    folder = tmp_path_factory.mktemp("canvas") / "run"
    train(TINY.replace(image_size=14, epochs=1), folder)
    return restore(folder)
