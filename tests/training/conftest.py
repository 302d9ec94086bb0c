import pytest

from teka.training import restore, train


@pytest.fixture(scope="session")
def dropping(tiny, tmp_path_factory):
    """The folder of a run with dropout and redrawn projections, so that a wrong random state changes the weights."""
    folder = tmp_path_factory.mktemp("dropping") / "run"
    train(tiny.replace(epochs=3, dropout=0.2, redraw_every=4), folder)
    return folder


@pytest.fixture(scope="session")
def trained_on_canvas(tiny, tmp_path_factory):
    """A run whose images have a margin, so that they can be shifted without loss."""
    folder = tmp_path_factory.mktemp("canvas") / "run"
    train(tiny.replace(image_size=14, epochs=1), folder)
    return restore(folder)
