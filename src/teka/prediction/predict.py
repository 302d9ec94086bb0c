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
    """Predicted classes of a picture with their softmax probabilities, the most probable first.

    >>> from teka.prediction import Prediction
    >>> prediction = Prediction("photo.png", ("cat", "dog"), (0.9, 0.1))
    >>> prediction.class_names[0]
    'cat'

    Args:
        picture: Path of the picture.
        class_names: Names of the classes, the most probable first.
        probabilities: Probabilities of the classes in the same order. They sum to 1.
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
        model: Name of a model that comes with the library: "mnist", "fashion-mnist", "cifar10" or
            "digits". Or a folder written by `teka export`.
        ground: Background of a drawing: "dark", "light", or "auto", which examines the border. In
            photographs, only transparent pixels get this color.
        batch_size: Number of pictures per batch.
        progress: Function that is called after each batch with the number of classified pictures
            and the number of all pictures.

    Raises:
        ImportError: Pillow or safetensors is not installed.
        ValueError: A file is not a picture, a picture has no ink, the model cannot be read, or the
            model is not an image classifier.
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
