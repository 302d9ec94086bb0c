from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from teka.data import load


@pytest.fixture(scope="session")
def digits():
    """Test images of the digits as bytes without their margin, and their classes."""
    split = load("digits", image_size=8).test
    return (split.images[:, 0] * 255).round().byte().numpy(), split.labels.tolist()


@pytest.fixture
def put(tmp_path: Path):
    """Write bytes as a picture file; returns its path."""
    written = []

    def write(levels: np.ndarray) -> Path:
        written.append(tmp_path / f"{len(written)}.png")
        Image.fromarray(levels).save(written[-1])
        return written[-1]

    return write
