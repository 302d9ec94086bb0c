"""What a trained model says of picture files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from teka.checks import check_callable, check_sizes
from teka.errors import did_you_mean, wrong_type, wrong_value
from teka.files import expand_user
from teka.models import load, read_config
from teka.models.model_file import PRETRAINED
from teka.prediction.pictures import read_images

DEFAULT_MODEL = "mnist"


@dataclass(frozen=True)
class Prediction:
    """What a model says of a picture file: the classes, the most probable first, and their softmax probabilities.

    >>> import tempfile
    >>> from PIL import Image, ImageOps
    >>> from teka.prediction import predict
    >>> bar = ImageOps.expand(Image.new("L", (10, 70)), border=20, fill=255)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     bar.save(f"{folder}/bar.png")
    ...     (prediction,) = predict([f"{folder}/bar.png"], "digits")
    >>> prediction.class_names[0], round(sum(prediction.probabilities), 3)
    ('1', 1.0)
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
    """For each picture file every class by a model file, the most probable first, and how probable it holds them.

    Args:
        pictures: The files, of any size and kind that Pillow reads.
        model: "mnist", "fashion-mnist", "cifar10" or "digits", which come with the library, or a folder that
            `teka export` has written.
        ground: What is drawn on: "dark", "light", or "auto" by the border. Of whole pictures only what is transparent.
        batch_size: Pictures at a time.
        progress: Called after each batch with the number of pictures so far and of all.

    Raises:
        ImportError: Pillow or safetensors is not installed.
        ValueError: A file that is no picture, a picture without ink, or a model file that cannot be read or gives no
            classes of a whole picture.
    """
    check_sizes({"batch_size": batch_size})
    if isinstance(pictures, str) or not isinstance(pictures, Sequence):
        raise wrong_value("pictures", pictures, "a list of files")
    if progress is not None:
        check_callable("progress", progress)
    if not pictures:
        raise wrong_value("pictures", list(pictures), "at least one")
    _check_model(model)
    config = read_config(model)
    loaded = load(model)
    sizes = {"image_size": config.image_size, "in_channels": config.in_channels}
    names = config.class_names or tuple(map(str, range(config.num_classes)))
    predictions = []
    for start in range(0, len(pictures), batch_size):
        batch = pictures[start : start + batch_size]
        with torch.inference_mode():
            images = read_images(batch, config.pictures, **sizes, ground=ground)
            logits = loaded(images)
        if logits.ndim != 2:
            raise wrong_value(
                "model", str(model), "one of whole pictures; it says the class of every pixel"
            )
        probabilities = logits.softmax(dim=1)
        for picture, highest, classes in zip(
            batch, *probabilities.sort(descending=True, stable=True), strict=True
        ):
            ranked = tuple(names[label] for label in classes.tolist())
            predictions.append(Prediction(str(picture), ranked, tuple(highest.tolist())))
        if progress is not None:
            progress(len(predictions), len(pictures))
    return predictions


def _check_model(model: object) -> None:
    if not isinstance(model, (str, Path)):
        raise wrong_type("model", model, "a name or a folder")
    if str(model) in PRETRAINED:
        return
    folder = expand_user(model)
    expected = f"one of {', '.join(PRETRAINED)}, or a folder that teka export has written"
    if not str(model) or not folder.is_dir():
        raise wrong_value("model", str(model), f"{expected}{did_you_mean(model, PRETRAINED)}")
    if (folder / "run.json").is_file():
        raise wrong_value(
            "model", str(model), f"{expected}: export this run by teka export {model} --out FOLDER"
        )
