"""The settings of a `transformers` image processor, read as our own preprocessing."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from teka.audit.adapters.preprocessing import Preprocessing
from teka.data import Normalize
from teka.errors import wrong_value
from teka.files import read_json

PROCESSOR_FILE = "preprocessor_config.json"
STEPS = ("do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_pad", "do_flip_channel_order")
# Pillow's numbers for its kernels, which the files keep.
_RESAMPLINGS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
_WARPED_FROM = 384  # from this side on ConvNeXt's processor does not crop


def read_processor_file(folder: Path, in_channels: int) -> Preprocessing | None:
    """The preprocessing of a folder with `preprocessor_config.json`, for images of so many channels, or None."""
    file = folder / PROCESSOR_FILE
    return read_processor(read_json(file), in_channels, str(file)) if file.is_file() else None


def read_processor(settings: Mapping[str, object], in_channels: int, source: str) -> Preprocessing:
    """The preprocessing that an image processor's settings stand for: resize, crop, rescale, normalise.

    Rescaling and normalising become one step in intensities: of levels 0 … 255, f their factor, m and s the mean and
    the deviation, y = (255 f x − o − m) / s, o = 1 where the settings have an offset. An error names the source.
    """
    try:
        resize, crop = _sizes(settings)
        return Preprocessing(
            in_channels,
            resize,
            _resampling(settings.get("resample")),
            crop,
            _normalization(settings, in_channels),
            bool(settings.get("do_flip_channel_order")),
        )
    except (ValueError, TypeError, KeyError, ZeroDivisionError) as error:
        raise ValueError(f"{source} cannot be read as preprocessing: {error}") from error


def _sizes(settings: Mapping[str, object]) -> tuple[int | tuple[int, int] | None, tuple[int, int] | None]:
    """What to resize to, and what to crop."""
    resize: int | tuple[int, int] | None = None
    crop: tuple[int, int] | None = None
    kind = str(settings.get("image_processor_type", settings.get("feature_extractor_type", "")))
    if settings.get("do_resize", "size" in settings):
        resize = _resize(settings["size"])
        if isinstance(resize, int) and kind.startswith("Levit"):
            resize = int(256 / 224 * resize)
        if isinstance(resize, int) and kind.startswith("ConvN"):
            side, share = resize, settings.get("crop_pct")
            wider = int(side / (224 / 256 if share is None else float(cast(float, share))))
            resize, crop = ((side, side), None) if side >= _WARPED_FROM else (wider, (side, side))
    if settings.get("do_center_crop"):
        if crop is not None:
            raise wrong_value("do_center_crop", True, "False beside crop_pct")
        cropped = _resize(settings.get("crop_size", settings.get("size")))
        crop = (cropped, cropped) if isinstance(cropped, int) else cropped
    if settings.get("do_pad"):
        raise wrong_value("do_pad", True, "False: padding to a common size is not read")
    return resize, crop


def _resize(size: object) -> int | tuple[int, int]:
    if isinstance(size, int):  # older files
        return (size, size)
    if isinstance(size, Sequence) and len(size) == 2:
        return (int(size[0]), int(size[1]))
    known = {name: value for name, value in size.items() if value is not None} if isinstance(size, Mapping) else {}
    if known.keys() == {"height", "width"}:
        return (known["height"], known["width"])
    if known.keys() == {"shortest_edge"}:
        return known["shortest_edge"]
    raise wrong_value("size", size, "height and width, or shortest_edge")


def _resampling(number: object) -> str:
    number = _RESAMPLINGS.index("bilinear") if number is None else number
    if not isinstance(number, int) or not 0 <= number < len(_RESAMPLINGS):
        raise wrong_value("resample", number, f"one of Pillow's numbers, 0 to {len(_RESAMPLINGS) - 1}")
    return _RESAMPLINGS[number]


def _normalization(settings: Mapping[str, object], in_channels: int) -> Normalize | None:
    rescaled = bool(settings.get("do_rescale", True))
    factor = float(cast(float, settings.get("rescale_factor", 1 / 255))) if rescaled else 1.0
    span = 255 * factor  # what an intensity of 1 becomes
    offset = 1.0 if rescaled and settings.get("rescale_offset") else 0.0
    mean, deviation = [0.0] * in_channels, [1.0] * in_channels
    if settings.get("do_normalize", "image_mean" in settings):
        mean = _per_channel("image_mean", settings["image_mean"], in_channels)
        deviation = _per_channel("image_std", settings["image_std"], in_channels)
    if settings.get("include_top"):  # EfficientNet's divides once more
        again = _per_channel("image_std", settings["image_std"], in_channels)
        deviation = [one * other for one, other in zip(deviation, again, strict=True)]
    normalization = Normalize(tuple((one + offset) / span for one in mean), tuple(one / span for one in deviation))
    unchanged = normalization == Normalize((0.0,) * in_channels, (1.0,) * in_channels)
    return None if unchanged else normalization


def _per_channel(argument: str, values: object, in_channels: int) -> list[float]:
    given = [values] if isinstance(values, int | float) else values
    if not isinstance(given, Sequence) or len(given) not in (1, in_channels):
        raise wrong_value(argument, values, f"one number, or one for each of {in_channels} channels")
    return [float(one) for one in given] * (in_channels if len(given) == 1 else 1)
