import numpy as np
import pytest

from teka.data import load
from teka.training import Run, train

TINY = Run.from_fields(
    train_size=64, validation_size=32, dim=8, depth=2, heads=2, epochs=1, batch_size=32
)


@pytest.fixture(scope="session")
def few_digits(tmp_path_factory):
    """Return the path of a file with 96 training and 20 test digits on a canvas of 16 × 16."""
    path, arrays = tmp_path_factory.mktemp("data") / "few.npz", {}
    digits = load("digits", image_size=16)
    for part, split, number in (("", digits.train, 96), ("test_", digits.test, 20)):
        arrays[f"{part}images"] = np.rint(255 * split.images[:number, 0].numpy()).astype(np.uint8)
        arrays[f"{part}labels"] = split.labels[:number].numpy()
    np.savez(path, **arrays)
    return str(path)


@pytest.fixture(scope="session")
def trained_folder(few_digits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "run"
    train(TINY.replace(data=few_digits), folder)
    return folder
