"""Loading of vision models of `transformers`, with the preprocessing of their image processors."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from teka.audit.adapters.load_options import DEFAULT_LOAD_OPTIONS, LoadOptions
from teka.audit.adapters.loaded_model import (
    CLASSIFIER,
    DETECTOR,
    ENCODER,
    MULTILABEL_CLASSIFIER,
    REGRESSOR,
    SEGMENTER,
    LoadedModel,
    Task,
    read_as,
    read_class_names,
    wrap_module,
)
from teka.audit.adapters.preprocessing import Preprocessing
from teka.audit.adapters.verify_transform import verify_against_library
from teka.data import Normalize
from teka.errors import require, wrong_value
from teka.files import expand_user, read_json

PROCESSOR_FILE = "preprocessor_config.json"
STEPS = (
    "do_resize",
    "do_center_crop",
    "do_rescale",
    "do_normalize",
    "do_pad",
    "do_flip_channel_order",
)
# Resampling methods in the order of Pillow's numbers, which the files contain.
_RESAMPLINGS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
_WARPED_FROM = 384  # ConvNeXt's processor does not crop from this size on
Resize = int | tuple[int, int]
# Task and auto class of transformers, by the end of the architecture's name.
TASKS = {
    "ForImageClassification": (CLASSIFIER, "AutoModelForImageClassification"),
    "ForImageClassificationWithTeacher": (CLASSIFIER, "AutoModelForImageClassification"),
    "ForSemanticSegmentation": (SEGMENTER, "AutoModelForSemanticSegmentation"),
    "ForObjectDetection": (DETECTOR, "AutoModelForObjectDetection"),
    "ForPreTraining": (ENCODER, "AutoModel"),
    "ForMaskedImageModeling": (ENCODER, "AutoModel"),
    "Model": (ENCODER, "AutoModel"),
    # These have no auto class that loads and checks their weights, so use their own class.
    "VisionModelWithProjection": (ENCODER, None),
    "Backbone": (ENCODER, None),
}
# Tasks of classifiers by the `problem_type` of their config.
PROBLEMS = {"multi_label_classification": MULTILABEL_CLASSIFIER, "regression": REGRESSOR}
# Prefix of the pooler's weights of a ViT, which pretrained encoders often lack.
POOLER = "pooler."


def read_processor_file(folder: Path, in_channels: int) -> Preprocessing | None:
    """Return the preprocessing in the `preprocessor_config.json` of a folder, or None."""
    file = folder / PROCESSOR_FILE
    return read_processor(read_json(file), in_channels, str(file)) if file.is_file() else None


def read_processor(settings: Mapping[str, object], in_channels: int, source: str) -> Preprocessing:
    """Return the preprocessing of an image processor's settings.

    The steps are resize, crop, rescale and normalize. The last two are combined for intensities x
    in [0, 1]: y = (255 f x − o − m) / s, with the rescale factor f, the mean m and the deviation s.
    The offset o is 1 if the settings have a rescale offset, else 0.

    Args:
        settings: Settings of the image processor.
        in_channels: Number of channels.
        source: Name of the settings in error messages.

    Raises:
        ValueError: The settings are not supported.
    """
    try:
        (resize, crop), number = _sizes(settings), settings.get("resample")
        number = _RESAMPLINGS.index("bilinear") if number is None else number
        if not isinstance(number, int) or not 0 <= number < len(_RESAMPLINGS):
            raise wrong_value(
                "resample", number, f"one of Pillow's numbers, 0 to {len(_RESAMPLINGS) - 1}"
            )
        normalization, blue_first = (
            _normalization(settings, in_channels),
            bool(settings.get("do_flip_channel_order")),
        )
        return Preprocessing(
            in_channels, resize, _RESAMPLINGS[number], crop, normalization, blue_first
        )
    except (ValueError, TypeError, KeyError, ZeroDivisionError) as error:
        raise ValueError(f"{source} cannot be read as preprocessing: {error}") from error


def _sizes(settings: Mapping[str, object]) -> tuple[Resize | None, tuple[int, int] | None]:
    """Return the size of the resize, and that of the crop."""
    resize: Resize | None = None
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
        raise wrong_value("do_pad", True, "False; padding to a common size is not read")
    return resize, crop


def _resize(size: object) -> Resize:
    if isinstance(size, int):  # older files
        return (size, size)
    if isinstance(size, Sequence) and len(size) == 2:
        return (int(size[0]), int(size[1]))
    known = (
        {name: value for name, value in size.items() if value is not None}
        if isinstance(size, Mapping)
        else {}
    )
    if known.keys() == {"height", "width"}:
        return (known["height"], known["width"])
    if known.keys() == {"shortest_edge"}:
        return known["shortest_edge"]
    raise wrong_value("size", size, "height and width, or shortest_edge")


def _normalization(settings: Mapping[str, object], in_channels: int) -> Normalize | None:
    rescaled = bool(settings.get("do_rescale", True))
    factor = float(cast(float, settings.get("rescale_factor", 1 / 255))) if rescaled else 1.0
    span = 255 * factor  # what an intensity of 1 becomes
    offset = 1.0 if rescaled and settings.get("rescale_offset") else 0.0
    mean, deviation = [0.0] * in_channels, [1.0] * in_channels
    if settings.get("do_normalize", "image_mean" in settings):
        mean = _per_channel("image_mean", settings["image_mean"], in_channels)
        deviation = _per_channel("image_std", settings["image_std"], in_channels)
    if settings.get("include_top"):  # EfficientNet divides by the deviation twice
        again = _per_channel("image_std", settings["image_std"], in_channels)
        deviation = [first * second for first, second in zip(deviation, again, strict=True)]
    normalization = Normalize(
        tuple((value + offset) / span for value in mean), tuple(value / span for value in deviation)
    )
    unchanged = normalization == Normalize((0.0,) * in_channels, (1.0,) * in_channels)
    return None if unchanged else normalization


def _per_channel(argument: str, values: object, in_channels: int) -> list[float]:
    numbers = [values] if isinstance(values, int | float) else values
    if not isinstance(numbers, Sequence) or len(numbers) not in (1, in_channels):
        raise wrong_value(
            argument, values, f"one number, or one for each of {in_channels} channels"
        )
    return [float(number) for number in numbers] * (in_channels if len(numbers) == 1 else 1)


def load_transformers(source: str, load_options: LoadOptions = DEFAULT_LOAD_OPTIONS) -> LoadedModel:
    """Load a vision model of `transformers` in float32, with its image processor's settings.

    The config determines what is measured: logits, segmentation maps, boxes or features. For a
    model of images and text (CLIP, SigLIP), they are the features of the image. A masked
    autoencoder (ViTMAE) sees the whole image.

    Args:
        source: Folder or id on the Hugging Face hub.
        load_options: Weights, size, normalization and device of the model.
    """
    library = require("transformers", "this model needs", "teka[audit]")
    folder = expand_user(source)
    source = str(folder) if folder.is_dir() else source
    with _quiet(library):
        task, models = _task(library, source)
        if load_options.weights is None:
            module = _trained(models, source, task)
        else:
            module = load_options.fill(_drawn(library, models, source, load_options, task))
        vision = getattr(module.config, "vision_config", module.config)
        in_channels = int(getattr(vision, "num_channels", 3))
        transform, note = _preprocessing(library, source, in_channels, task)
    side, size = getattr(vision, "image_size", None), transform.crop or transform.resize
    fitted, wanted = load_options.fit(transform)
    if load_options.input_size is not None or (size is None and side is not None):
        fitted, size = fitted.resized_to(side if wanted is None else wanted)
    size = size if isinstance(size, tuple) else None
    name = Path(source).name if Path(source).is_dir() else source
    known: dict[str, Any] = {"note": note}
    if task not in (ENCODER, REGRESSOR):
        known |= {
            "class_names": read_class_names(module.config.id2label),
            "num_classes": module.config.num_labels,
        }
    if task is ENCODER:
        module = _image_encoder(module)
    return wrap_module(
        module.eval(), name, "transformers", fitted, size, load_options.device, task, **known
    )


class ImageEncoder(nn.Module):
    """Image encoder of a model of images and text, such as CLIP."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.config = model, model.config

    def forward(self, pixel_values: Tensor) -> object:
        """Return the image features that the model compares with texts."""
        return self.model.get_image_features(pixel_values=pixel_values)


class UnmaskedEncoder(nn.Module):
    """Encoder of a masked autoencoder without masking, so that it is deterministic."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.config = model, model.config
        self.config.mask_ratio = 0.0

    def forward(self, pixel_values: Tensor) -> object:
        """Return the output of the encoder."""
        num_patches = self.model.embeddings.patch_embeddings(pixel_values).shape[1]
        # The model sorts the patches by this noise, and draws it at random if it is not given.
        noise = torch.arange(num_patches, device=pixel_values.device).expand(len(pixel_values), -1)
        return self.model(pixel_values, noise=noise)


def _image_encoder(module: Any) -> nn.Module:
    """Return the part of a model that encodes images, without random choices."""
    if hasattr(module, "get_image_features"):
        return ImageEncoder(module)
    return (
        UnmaskedEncoder(module)
        if hasattr(getattr(module, "embeddings", None), "random_masking")
        else module
    )


def _task(library: Any, source: str) -> tuple[Task, Any]:
    """Return the task of a model and the class that loads it. The default is a classifier."""
    with read_as(source, "a vision model of transformers by its config"):
        config = library.AutoConfig.from_pretrained(source, trust_remote_code=False)
        check_no_kernel(config)
    architecture = (config.architectures or ["ForImageClassification"])[0]
    found = next((found for end, found in TASKS.items() if architecture.endswith(end)), None)
    if found is None:
        endings = ", ".join(f"…{end}" for end in TASKS)
        raise wrong_value("the architecture of the model", architecture, f"one of {endings}")
    task = (
        PROBLEMS.get(str(getattr(config, "problem_type", None)), CLASSIFIER)
        if found[0] is CLASSIFIER
        else found[0]
    )
    return task, getattr(library, found[1] or architecture)


def check_no_kernel(config: Any) -> None:
    """Check that a config does not request attention code from the hub, which would be run."""
    for part in (
        config,
        *(getattr(config, name, None) for name in getattr(config, "sub_configs", ())),
    ):
        name = getattr(part, "_attn_implementation", None)
        if "/" in str(name):
            raise wrong_value("attn_implementation", name, "one that comes with transformers")


def _trained(models: Any, source: str, task: Task) -> Any:
    """Return the model with the weights next to its config, and check that none is missing."""
    with read_as(source, f"{task.words} of transformers with its weights as safetensors"):
        settings = {"use_safetensors": True, "trust_remote_code": False, "dtype": torch.float32}
        module, found = models.from_pretrained(source, output_loading_info=True, **settings)
    missing = sorted(found["missing_keys"]) + sorted(map(str, found["mismatched_keys"]))
    if task is ENCODER and missing and all(name.startswith(POOLER) for name in missing):
        module.pooler = None  # like add_pooling_layer=False: the class token is measured
    elif missing:
        expected = f"weights for the whole model; {', '.join(missing[:3])} would be left at random"
        raise wrong_value("model", source, expected)
    return module


def _drawn(library: Any, models: Any, source: str, load_options: LoadOptions, task: Task) -> Any:
    """Return the model of a config with random weights."""
    with read_as(source, f"{task.words} of transformers by its config"), load_options.drawn():
        classes = (
            {} if load_options.num_classes is None else {"num_labels": load_options.num_classes}
        )
        config = library.AutoConfig.from_pretrained(source, trust_remote_code=False, **classes)
        return models.from_config(config, trust_remote_code=False)


def _preprocessing(
    library: Any, source: str, in_channels: int, task: Task
) -> tuple[Preprocessing, str]:
    """Return the preprocessing, and a note about it for the reader."""
    try:
        with read_as(source, "a model with an image processor"):
            processor = library.AutoImageProcessor.from_pretrained(source, trust_remote_code=False)
    except ValueError:
        if not Path(source).is_dir():
            raise
        read = read_processor_file(Path(source), in_channels)
        if read is not None:
            return (
                read,
                "the image processor could not be built, "
                "so its settings were read and not compared with it",
            )
        plain = (
            "no settings of an image processor were found: "
            "images in [0, 1] go in without normalization"
        )
        return Preprocessing(in_channels), plain
    # The output of to_dict lacks steps that the class of the processor sets to None.
    steps = {step: getattr(processor, step, None) for step in STEPS}
    settings = {**steps, **processor.to_dict()}
    if task is DETECTOR:
        # Detectors resize to a shorter side within a limit and pad to the largest image of a batch.
        settings |= {"do_resize": False, "do_pad": False}
        plain = (
            "pictures go in at the size at which they are loaded, "
            "not resized by the image processor"
        )
        return read_processor(settings, in_channels, f"the image processor of {source}"), plain
    transform = read_processor(settings, in_channels, f"the image processor of {source}")

    makes_grey = in_channels == 1 and getattr(processor, "do_convert_rgb", False)

    def own(levels: np.ndarray) -> Any:
        seen = np.repeat(levels, 3, axis=-1) if makes_grey else levels
        return processor(seen, input_data_format="channels_last")["pixel_values"][0]

    return verify_against_library(own, transform, source, type(processor).__name__), ""


@contextlib.contextmanager
def _quiet(library: Any) -> Iterator[None]:
    """Return a context without progress bars and log messages of the library."""
    logging = library.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
