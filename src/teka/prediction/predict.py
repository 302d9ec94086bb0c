"""Classification of picture files with a trained model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from teka.checks import check_sizes
from teka.errors import wrong_type, wrong_value
from teka.models import load, read_config
from teka.prediction.pictures import read_images

DEFAULT_MODEL = "mnist"


@dataclass(frozen=True)
class Prediction:
    """Classes of a picture, the most probable first, and their softmax probabilities.

    >>> from teka.prediction import Prediction
    >>> prediction = Prediction("photo.png", ("cat", "dog"), (0.9, 0.1))
    >>> prediction.class_names[0]
    'cat'

    Args:
        picture: Path of the picture.
        class_names: Names of the classes, the most probable first.
        probabilities: Their probabilities, which sum to 1.
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
    progress: Callable[[int, int], object] | None = None,
) -> list[Prediction]:
    """Classify picture files with a trained model.

    >>> import tempfile
    >>> from PIL import Image, ImageOps
    >>> from teka.prediction import predict
    >>> bar = ImageOps.expand(Image.new("L", (10, 70)), border=20, fill=255)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     bar.save(f"{folder}/bar.png")
    ...     (prediction,) = predict([f"{folder}/bar.png"], "digits")
    >>> prediction.class_names[0]
    '1'

    Args:
        pictures: Files of any size, in a format that teka reads.
        model: "mnist", "fashion-mnist", "cifar10" or "digits", which come with the library, or a
            folder that `teka export` has written.
        ground: Color that is drawn on: "dark", "light", or "auto" to choose it by the border. For
            photographs it is only the color behind transparent pixels.
        batch_size: Number of pictures at a time.
        progress: Called after each batch with the number of classified pictures and of all.

    Raises:
        ImportError: Pillow or safetensors is not installed.
        ValueError: A file is not a picture, a picture has no ink, or the model cannot be read or
            does not classify whole pictures.
    """
    check_sizes({"batch_size": batch_size})
    if isinstance(pictures, str) or not isinstance(pictures, Sequence) or not pictures:
        raise wrong_value("pictures", pictures, "a list of files")
    if not isinstance(model, (str, Path)):
        raise wrong_type("model", model, "a name or a folder")
    config = read_config(model)
    network = load(model)
    class_names = config.class_names or tuple(map(str, range(config.num_classes)))
    predictions = []
    for start in range(0, len(pictures), batch_size):
        batch = pictures[start : start + batch_size]
        images = read_images(
            batch,
            config.pictures,
            image_size=config.image_size,
            in_channels=config.in_channels,
            ground=ground,
        )
        with torch.inference_mode():
            logits = network(images)
        if logits.ndim != 2:
            expected = "a classifier of whole pictures, not of each pixel"
            raise wrong_value("model", str(model), expected)
        probabilities, classes = logits.softmax(dim=1).sort(descending=True, stable=True)
        for picture, row, labels in zip(batch, probabilities, classes, strict=True):
            names = tuple(class_names[label] for label in labels.tolist())
            predictions.append(Prediction(str(picture), names, tuple(row.tolist())))
        if progress is not None:
            progress(len(predictions), len(pictures))
    return predictions
