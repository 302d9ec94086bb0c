"""Classification of picture files with a trained model."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from teka.checks import check_image_size, check_name, check_number, check_sizes
from teka.codec import decode
from teka.data import resize_bilinear
from teka.data.pictures import read_picture, to_intensities
from teka.errors import wrong_argument, wrong_value
from teka.models import load, read_config

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["PictureSettings", "Prediction", "predict"]

DEFAULT_MODEL = "mnist"
# Width in pixels that the strokes of 95 % of MNIST's training images exceed.
MIN_MNIST_STROKE = 1.6
# Ink above this fraction of the maximum is fitted to the box, because resizing blurs the edges but
# does not change the extent of this ink.
EDGE_LEVEL = 1 / 3
# A pixel is ink if it differs from the background by more than this multiple of the noise.
NOISE_FACTOR = 6
# Strokes are measured and thickened on a canvas enlarged by this factor.
OVERSAMPLING = 4


@dataclass(frozen=True)
class Prediction:
    """All classes of a picture with their predicted probabilities, the most probable first.

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
    config = read_config(model)
    network = load(model)
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
            raise wrong_value(
                "model", str(model), "a classifier of whole pictures, not of each pixel"
            )
        probabilities, classes = logits.softmax(dim=1).sort(descending=True, stable=True)
        for picture, row, labels in zip(batch, probabilities, classes, strict=True):
            names = tuple(config.labels[label] for label in labels.tolist())
            predictions.append(Prediction(str(picture), names, tuple(row.tolist())))
        if progress is not None:
            progress(len(predictions), len(pictures))
    return predictions


@dataclass(frozen=True)
class PictureSettings:
    """Settings for converting picture files to the input images of a model.

    A model file stores these settings, so that `predict` prepares pictures like the training
    images. The field `fit` selects one of two conversions:

    - "whole" resizes the whole picture to the input size, without keeping the aspect ratio.
    - "ink" is for drawings, such as handwritten digits. It crops the drawing, scales it to fit a
      box while keeping the aspect ratio, and centers it on a dark canvas. The canvas is then
      resized to the input size. The images of MNIST were made in this way.

    >>> from dataclasses import asdict
    >>> from PIL import Image
    >>> from teka.prediction import PictureSettings, read_images
    >>> picture = Image.new("L", (200, 100), 255)
    >>> picture.paste(0, (10, 10, 20, 90))  # a black bar at the left on white
    >>> settings = PictureSettings("ink", canvas=(28, 28), box=(20, 20))
    >>> images = read_images([picture], asdict(settings), image_size=(28, 28), in_channels=1)
    >>> rows, columns = (images[0, 0] > 0.5).nonzero().T
    >>> (rows.min().item(), rows.max().item()), (columns.min().item(), columns.max().item())
    ((4, 23), (13, 15))

    Args:
        fit: "whole" or "ink".
        canvas: (height, width) of the canvas in pixels, for "ink".
        box: (height, width) of the box, for "ink".
        stroke: Smallest width of strokes in pixels of the canvas. Thinner strokes are thickened.

    Raises:
        ValueError: `fit` is unknown, a size is missing or wrong, or `stroke` is negative.
    """

    fit: str = "whole"
    canvas: tuple[int, int] | None = None
    box: tuple[int, int] | None = None
    stroke: float = 0.0

    def __post_init__(self) -> None:
        check_name("fit", self.fit, ("whole", "ink"))
        if self.fit == "ink":
            canvas = check_image_size("canvas", self.canvas)
            box = check_image_size("box", self.box)
            if box[0] > canvas[0] or box[1] > canvas[1]:
                raise wrong_value("box", self.box, f"a box that fits the canvas, {self.canvas}")
        elif self.canvas is not None or self.box is not None:
            raise wrong_value("canvas and box", (self.canvas, self.box), "None with fit='whole'")
        check_number(
            "stroke",
            self.stroke,
            "a width in pixels of at least 0 and below 100",
            low=0,
            high=100,
            exclude=(100,),
        )


def choose_picture_settings(dataset_name: str, image_size: tuple[int, int]) -> PictureSettings:
    """Return the settings that make pictures look like the training images of a data set.

    In MNIST, drawings fit a box of 20×20 pixels on a canvas of 28×28 pixels. In Fashion-MNIST, they
    fill this canvas. In digits, they fit a box of 8×8 pixels. For other data sets, the default
    settings resize the whole picture.

    Args:
        dataset_name: Name of the data set, such as "mnist".
        image_size: (height, width) of the training images.
    """
    if dataset_name == "digits":
        return PictureSettings("ink", image_size, (8, 8))
    if dataset_name == "mnist":
        return PictureSettings("ink", (28, 28), (20, 20), MIN_MNIST_STROKE)
    if dataset_name == "fashion-mnist":
        return PictureSettings("ink", (28, 28), (28, 28))
    return PictureSettings()


def read_images(
    pictures: "Sequence[str | Path | Image]",
    settings: Mapping[str, object] | None,
    *,
    image_size: tuple[int, ...],
    in_channels: int,
    ground: str = "auto",
) -> Float[Tensor, "pictures channels height width"]:
    """Read pictures and convert them to input images of a model, with values from 0 to 1.

    Args:
        pictures: Paths of files, or Pillow images.
        settings: Fields of `PictureSettings`. None selects the default settings.
        image_size: (height, width) of the images.
        in_channels: 1 for gray, 3 for RGB.
        ground: Background of a drawing, see `teka.prediction.predict`.
    """
    decoded = decode(PictureSettings, settings or {}, "pictures")
    images = []
    for picture in pictures:
        if decoded.fit == "whole":
            levels = read_picture(picture, in_channels=in_channels, ground=ground)
        else:
            gray = read_picture(picture, ground=ground)[0]
            try:
                levels = center_drawing(gray, decoded, ground=ground).expand(in_channels, -1, -1)
            except ValueError as error:
                raise ValueError(f"{picture}: {error}") from error
        images.append(resize_bilinear(levels[None], image_size))
    return to_intensities(torch.cat(images))


def center_drawing(
    levels: UInt8[Tensor, "height width"], settings: PictureSettings, *, ground: str
) -> UInt8[Tensor, "canvas_height canvas_width"]:
    """Crop, scale and center a drawing as bright ink on a black canvas, like the images of MNIST.

    1. Compute the ink, which is the difference from the background.
    2. Crop the ink and scale it to fit the box, keeping its aspect ratio. Ink weaker than a third
       of the maximum may lie outside the box.
    3. Shift the ink by whole pixels, so that its center of mass is at the center of the canvas.
       The box stays on the canvas.
    4. Thicken strokes that are thinner than `settings.stroke`.
    5. Scale the intensities, so that the maximum is 255.

    Raises:
        ValueError: The picture has no ink, because it is uniform.

    Source: LeCun et al., Gradient-based learning applied to document recognition, 1998, III.A.
    """
    from PIL import Image, ImageFilter

    canvas_size = np.array(settings.canvas)
    ink = _subtract_background(levels.numpy().astype(np.float64), ground)
    if not ink.any():
        raise wrong_argument(
            "ink",
            "none",
            "a drawing that differs from the ground",
            "Try ground='dark' or ground='light'.",
        )
    ink /= ink.max()
    pixels = np.argwhere(ink > EDGE_LEVEL)
    first = pixels.min(axis=0)
    size = pixels.max(axis=0) + 1 - first
    scale = min(np.array(settings.box) / size)
    center = [
        np.average(np.arange(side) + 0.5, weights=ink.sum(axis=1 - axis))
        for axis, side in enumerate(ink.shape)
    ]
    # Position of the corner of the ink on the canvas.
    corner = np.rint(canvas_size / 2 - (np.array(center) - first) * scale)
    corner = np.clip(corner, 0, np.floor(canvas_size - size * scale + 1e-9))
    start = first - corner / scale
    fine = _crop_and_scale(ink, start, scale * OVERSAMPLING, canvas_size * OVERSAMPLING)
    missing = settings.stroke - measure_stroke_width(fine > 127) / OVERSAMPLING
    if missing > 0:
        radius = max(1, round(missing * OVERSAMPLING / 2))
        thick = Image.fromarray(fine).filter(ImageFilter.MaxFilter(2 * radius + 1))
        canvas = np.array(thick.resize(canvas_size[::-1], Image.Resampling.LANCZOS))
    else:
        canvas = _crop_and_scale(ink, start, scale, canvas_size)
    brightened = canvas.astype(np.float64) * (255 / canvas.max())
    return torch.from_numpy(np.rint(brightened).astype(np.uint8))


def measure_stroke_width(ink: Bool[np.ndarray, "height width"]) -> float:
    """Return the mean stroke width of a drawing in pixels, or 0 if there is no ink.

    The estimate is twice the area of the ink, divided by the length of its outline. The length is
    π/4 times the number of pixel edges on the outline.
    """
    padded = np.pad(ink, 1)
    edges = np.diff(padded, axis=0).sum() + np.diff(padded, axis=1).sum()
    return 2 * float(padded.sum()) / (edges * math.pi / 4) if edges else 0.0


def _subtract_background(
    levels: Float[np.ndarray, "height width"], ground: str
) -> Float[np.ndarray, "height width"]:
    """Return the ink of a drawing: how much each pixel differs from the background.

    The level of the background is the median of the border pixels, and its noise is their median
    absolute deviation. Differences that the noise may explain become 0. If `ground` is "auto", the
    background is light if the border mean is closer to the lightest than to the darkest pixel.
    """
    band = max(1, round(0.02 * min(levels.shape)))
    is_border = np.ones(levels.shape, dtype=bool)
    is_border[band:-band, band:-band] = False
    border = levels[is_border]
    if ground == "auto":
        ground = "light" if border.mean() > (levels.min() + levels.max()) / 2 else "dark"
    ink = levels - np.median(border)
    if ground == "light":
        ink = -ink
    noise = NOISE_FACTOR * np.median(np.abs(ink[is_border]))
    return np.where(ink > noise, ink, 0.0)


def _crop_and_scale(
    ink: Float[np.ndarray, "height width"],
    start: Float[np.ndarray, " 2"],
    scale: float,
    size: Int[np.ndarray, " 2"],
) -> UInt8[np.ndarray, "new_height new_width"]:
    """Crop a rectangle from a picture and scale it to a new size. Pixels outside are 0.

    Args:
        ink: The picture, with values from 0 to 1.
        start: (row, column) of the upper left corner of the rectangle.
        scale: Factor from pixels of the picture to pixels of the result.
        size: (height, width) of the result.
    """
    from PIL import Image

    end = start + size / scale
    top, left = np.floor(start).astype(int)
    bottom, right = np.ceil(end).astype(int)
    picture = Image.fromarray(np.rint(ink * 255).astype(np.uint8))
    window = picture.crop((left, top, right, bottom))
    box = (start[1] - left, start[0] - top, end[1] - left, end[0] - top)
    return np.array(window.resize(size[::-1], Image.Resampling.LANCZOS, box))
