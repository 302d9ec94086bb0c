import pytest

from teka.training import Run, restore, train

# A model and a training that take about a second. Its accuracy is not tested.
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
    """The folder of a run with dropout and redrawn projections, so that a wrong random state changes the weights."""
    folder = tmp_path_factory.mktemp("dropping") / "run"
    train(TINY.replace(epochs=3, dropout=0.2, redraw_every=4), folder)
    return folder


@pytest.fixture(scope="session")
def trained_on_canvas(tmp_path_factory):
    """A run whose images have a margin, so that they can be shifted without loss."""
    folder = tmp_path_factory.mktemp("canvas") / "run"
    train(TINY.replace(image_size=14, epochs=1), folder)
    return restore(folder)
