"""What a trained model says of picture files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from teka.data import resize_bilinear
from teka.data.pictures import read_picture
from teka.errors import wrong_value
from teka.models import ModelConfig, load, read_config
from teka.prediction.fit_ink import fit_ink
from teka.prediction.picture_settings import PictureSettings

DEFAULT_MODEL = "mnist"


@dataclass(frozen=True)
class Prediction:
    """What a model says of one picture.

    Args:
        picture: The file.
        class_names: The classes, the most probable first.
        probabilities: Their probabilities, by the model's softmax.
    """

    picture: str
    class_names: tuple[str, ...]
    probabilities: tuple[float, ...]


def predict(
    pictures: Sequence[str | Path],
    model: str | Path = DEFAULT_MODEL,
    *,
    ground: str = "auto",
    batch_size: int = 256,
) -> list[Prediction]:
    """Classes of picture files by a model file, and how probable it holds them.

    Args:
        pictures: The files, of any size and kind that Pillow reads.
        model: "mnist" or "digits", which come with the library, or the folder of a model file.
        ground: What is drawn on: "dark", "light", or "auto" to tell it from the border. For pictures that are taken
            whole it only fills what is transparent.
        batch_size: Pictures at a time.

    Returns:
        For each picture every class, the most probable first.

    Raises:
        ImportError: Pillow or safetensors is not installed.
        ValueError: A file that is no picture, a picture without ink, or a model file that cannot be read.
    """
    if batch_size < 1:
        raise wrong_value("batch_size", batch_size, "at least 1")
    if not pictures:
        raise wrong_value("pictures", list(pictures), "at least one")
    config = read_config(model)
    loaded = load(model)
    probabilities = []
    for start in range(0, len(pictures), batch_size):
        images = read_images(pictures[start : start + batch_size], config, ground=ground)
        with torch.inference_mode():
            probabilities.append(loaded(images).softmax(dim=1))
    names = config.class_names or tuple(map(str, range(config.num_classes)))
    predictions = []
    for picture, row in zip(pictures, torch.cat(probabilities), strict=True):
        highest, classes = row.sort(descending=True, stable=True)
        ranked = tuple(names[label] for label in classes.tolist())
        predictions.append(Prediction(str(picture), ranked, tuple(highest.tolist())))
    return predictions


def read_images(
    pictures: Sequence[str | Path], config: ModelConfig, *, ground: str = "auto"
) -> Float[Tensor, "pictures channels height width"]:
    """Picture files as the images that a model was trained on, intensities in [0, 1].

    Args:
        pictures: The files.
        config: Of the model; its `pictures` says how, and without it they are taken whole.
        ground: As for `predict`.

    Raises:
        ValueError: A file that is no picture, a picture without ink, or settings that are none.
    """
    settings = PictureSettings() if config.pictures is None else PictureSettings.from_dict(config.pictures)
    images = []
    for picture in pictures:
        if settings.fit == "whole":
            levels = read_picture(picture, in_channels=config.in_channels, ground=ground)
        else:
            levels = read_picture(picture, ground=ground)[0]
            try:
                canvas = fit_ink(levels, settings, ground=ground)
            except ValueError as error:
                raise ValueError(f"{picture}: {error}") from error
            levels = canvas.expand(config.in_channels, -1, -1)
        images.append(resize_bilinear(levels[None], config.image_size))
    return torch.cat(images).to(torch.float32) / 255
