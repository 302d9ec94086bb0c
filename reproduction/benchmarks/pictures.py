"""How many digits a packaged model reads from picture files: python reproduction/benchmarks/pictures.py DATA_DIR [MODEL].

MNIST's test images 500 to 1,499 and scikit-learn's test digits are written as PNG files, as they are and as a scan or a
photograph might have them.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from teka.data import load
from teka.prediction import predict

Levels = NDArray[np.uint8]
FIRST, LAST = 500, 1500


def dark_on_light(image: Levels, _: np.random.Generator) -> Levels:
    """Ink on paper."""
    return 255 - image


def in_a_corner(image: Levels, random: np.random.Generator) -> Levels:
    """In one of the corners of a canvas four times as wide and high."""
    height, width = image.shape
    canvas = np.zeros((4 * height, 4 * width), np.uint8)
    down, right = (random.integers(2) * 3 * side for side in image.shape)
    canvas[down : down + height, right : right + width] = image
    return canvas


def larger(image: Levels, random: np.random.Generator) -> Levels:
    """Two to five times as wide and high."""
    scale = random.uniform(2, 5)
    size = [round(scale * side) for side in image.shape[::-1]]
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BICUBIC))


def on_paper(image: Levels, random: np.random.Generator, shade: NDArray | float = 0.0) -> Levels:
    """Dark ink on grey paper with noise of 8 levels."""
    paper = 200 - 0.65 * larger(image, random).astype(float)
    rows = np.linspace(0, 1, paper.shape[0])[:, None]
    return np.clip(paper - shade * rows + random.normal(0, 8, paper.shape), 0, 255).astype(np.uint8)


def in_shadow(image: Levels, random: np.random.Generator) -> Levels:
    """The same, 60 levels darker at the bottom than at the top."""
    return on_paper(image, random, 60.0)


WAYS: dict[str, Callable[[Levels, np.random.Generator], Levels]] = {
    "as they are": lambda image, _: image,
    "dark on light": dark_on_light,
    "in a corner of four times the sides": in_a_corner,
    "two to five times as large": larger,
    "on noisy grey paper": on_paper,
    "the same with a shadow": in_shadow,
}


def share_read(images: torch.Tensor, labels: torch.Tensor, model: str, way: Callable) -> float:
    """Share of the images whose file is answered with its class."""
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{index}.png" for index in range(len(images))]
        for file, image in zip(files, (255 * images[:, 0]).round().byte().numpy(), strict=True):
            Image.fromarray(way(image, random)).save(file)
        answers = [one.class_names[0] for one in predict(files, model)]
    return float(
        np.mean(
            [answer == str(label) for answer, label in zip(answers, labels.tolist(), strict=True)]
        )
    )


def main() -> None:
    """Measure and print."""
    data_dir, model = sys.argv[1], (*sys.argv[2:], "mnist")[0]
    torch.set_num_threads(1)
    mnist, digits = load("mnist", data_dir=data_dir).test, load("digits").test
    for name, way in WAYS.items():
        found = share_read(mnist.images[FIRST:LAST], mnist.labels[FIRST:LAST], model, way)
        print(f"MNIST, {name}: {100 * found:.1f} %", flush=True)
        print(
            f"digits, {name}: {100 * share_read(digits.images, digits.labels, model, way):.1f} %",
            flush=True,
        )


if __name__ == "__main__":
    main()
