"""What a trained model says of picture files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from teka.checks import check_sizes
from teka.errors import wrong_value
from teka.models import load, read_config
from teka.prediction.pictures import read_images

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
    check_sizes({"batch_size": batch_size})
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
