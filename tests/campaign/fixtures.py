"""Inputs of the campaign: a trained run, a model file, data, an image, a study and a custom model."""

import functools
import os
from pathlib import Path

import numpy as np
from PIL import Image

from reproduction.__main__ import run_command as main
from teka.training import Run, train

TINY = Run.from_fields(
    image_size=8,
    train_size=48,
    validation_size=16,
    dim=8,
    heads=2,
    stem="convolution",
    epochs=2,
    batch_size=16,
)
STUDY = """\
name: tiny
base: {data: digits, image_size: 8, train_size: 48, validation_size: 16, dim: 8, heads: 2, epochs: 1, batch_size: 16}
factors:
  position: {none: {position: none}, rotary: {position: rotary}}
  kernel: {squared relu: {kernel: squared_relu}, relu: {kernel: relu}}
seeds: [0]
measure: {images: 20, shifted_images: 8, shifts: [[0, 2]], curve_points: 2}
"""
MODEL = """\
import sys
import torch
def make():
    return lambda images: images.flatten(1)[:, :10]
def leaves():
    sys.exit(0)
def leaves_when_called():
    return lambda images: sys.exit(0)
"""


def train_tiny(folder: Path, *, resume: bool = False) -> None:
    """Train the tiny run of the campaign, or resume it."""
    train(TINY, folder, resume=resume, progress_bar=False)


def write_fixtures(folder: Path) -> Path:
    """Write all fixtures into a folder, make it the working folder, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    train_tiny(Path("run"))
    assert main(["export", "run", "--out", "model"]) == 0
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (100, 8, 8), dtype=np.uint8)
    np.savez("data.npz", images=images, labels=np.arange(100) % 4)
    picture = np.zeros((40, 32), dtype=np.uint8)
    picture[8:32, 14:18] = 255  # The digit 1.
    Image.fromarray(picture).save("picture.png")
    Path("study.yaml").write_text(STUDY, encoding="utf-8")
    Path("model.py").write_text(MODEL, encoding="utf-8")
    Path("recipe.yaml").write_text(recipe_yaml(), encoding="utf-8")
    return folder


@functools.cache
def recipe_yaml() -> str:
    """Return the text of a recipe."""
    from importlib.resources import files

    return (files("teka.training") / "recipes" / "teka.yaml").read_text(encoding="utf-8")
