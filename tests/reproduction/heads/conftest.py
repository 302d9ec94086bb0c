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
def few_measurements(request):
    """Draw few initial heads, to save time."""
    with pytest.MonkeyPatch.context() as patched:
        if request.path.name != "test_measure.py":
            patched.setattr("reproduction.heads.measure.CHANCE_DRAWS", 8)
        yield


@pytest.fixture(scope="session")
def tiny():
    return TINY


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(TINY, folder, command="teka train")
    return restore(folder)
