import pytest

from teka.training import restore, train


@pytest.fixture(scope="session")
def run_with_dropout(tiny, tmp_path_factory):
    """Return the folder of a run with dropout and redrawn projections, so that a wrong random state changes the weights."""
    folder = tmp_path_factory.mktemp("dropping") / "run"
    train(tiny.replace(epochs=3, dropout=0.2, redraw_every=4), folder)
    return folder


@pytest.fixture(scope="session")
def run_with_margins(tiny, tmp_path_factory):
    """Return a run whose images have a margin, so that they can be shifted without loss."""
    folder = tmp_path_factory.mktemp("canvas") / "run"
    train(tiny.replace(image_size=14, epochs=1), folder)
    return restore(folder)
