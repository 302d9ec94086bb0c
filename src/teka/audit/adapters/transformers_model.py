"""Loader of vision models from `transformers`, with the preprocessing of their image processor."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from teka.audit.adapters.loaded_model import (
    DEFAULT_LOAD_OPTIONS,
    LoadedModel,
    LoadOptions,
    loaded_model_from_module,
    read_class_names,
    safe_loading,
    silence_libraries,
)
from teka.audit.adapters.preprocessing import RESAMPLINGS, Preprocessing
from teka.audit.adapters.verify_transform import measure_normalization, verify_against_library
from teka.errors import require, wrong_value
from teka.files import expand_user

PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
_WARPED_FROM = 384  # from this size on, the processor of ConvNeXt does not crop
Resize = int | tuple[int, int]
# Kind of output and auto class of transformers, by the end of the architecture's name.
TASKS = {
    "ForImageClassification": ("auto", "AutoModelForImageClassification"),
    "ForImageClassificationWithTeacher": ("auto", "AutoModelForImageClassification"),
    "ForSemanticSegmentation": ("segmentation", "AutoModelForSemanticSegmentation"),
    "ForObjectDetection": ("boxes", "AutoModelForObjectDetection"),
    "ForPreTraining": ("features", "AutoModel"),
    "ForMaskedImageModeling": ("features", "AutoModel"),
    "Model": ("features", "AutoModel"),
    # These have no auto class that loads and checks their weights, so use their own class.
    "VisionModelWithProjection": ("features", None),
    "Backbone": ("features", None),
}
# Kinds of output of classifiers by the `problem_type` of their config.
PROBLEMS = {"multi_label_classification": "multilabel", "regression": "features"}
# Prefix of the pooler's weights of a ViT, which pretrained encoders often lack.
POOLER = "pooler."


def preprocessing_from_processor(
    processor: Any, in_channels: int, source: str, *, as_loaded: bool = False
) -> Preprocessing:
    """Convert a transformers image processor to an equivalent `Preprocessing`.

    The size is read from the settings of the processor, and the normalization is measured. The
    result must give the same pixels as the processor for random images.

    Args:
        processor: Image processor of transformers.
        in_channels: Number of channels.
        source: Name of the model for error messages.
        as_loaded: Do not resize and pad images, as for detectors. The result is then not verified.

    Raises:
        ValueError: The settings are not supported, or do not describe the processor.
    """
    steps = {"do_resize": False, "do_pad": False} if as_loaded else {}
    makes_gray = in_channels == 1 and getattr(processor, "do_convert_rgb", False)

    def own(levels: np.ndarray) -> Any:
        levels = np.repeat(levels, 3, axis=-1) if makes_gray else levels
        return processor(levels, input_data_format="channels_last", **steps)["pixel_values"][0]

    name = type(processor).__name__
    with safe_loading(source, f"a model whose {name} is supported"):
        resize, crop = (None, None) if as_loaded else _read_resize_and_crop(processor)
        number = getattr(processor, "resample", None)
        resampling = "bilinear" if number is None else RESAMPLINGS[int(number)]
        normalization, blue_first = measure_normalization(own, in_channels)
        transform = Preprocessing(in_channels, resize, resampling, crop, normalization, blue_first)
    return transform if as_loaded else verify_against_library(own, transform, source, name)


def _read_resize_and_crop(processor: Any) -> tuple[Resize | None, tuple[int, int] | None]:
    """Read the sizes to which an image processor resizes and crops images.

    A size is None if the processor leaves out this step.
    """
    settings = processor.to_dict()
    name = type(processor).__name__
    resize = crop = None
    if settings.get("do_pad"):
        raise wrong_value("do_pad", True, "False", "Padding to a common size is not supported.")
    if settings.get("do_resize"):
        resize = _resize_from_settings(settings["size"])
        if isinstance(resize, int) and name.startswith("Levit"):
            resize = int(256 / 224 * resize)
        if isinstance(resize, int) and name.startswith("ConvNext"):
            side = resize
            if side < _WARPED_FROM:
                resize = int(side / (processor.crop_pct or 224 / 256))
                crop = (side, side)
            else:
                resize = (side, side)
    if settings.get("do_center_crop"):
        size = _resize_from_settings(settings["crop_size"])
        crop = (size, size) if isinstance(size, int) else size
    return resize, crop


def _resize_from_settings(size: Mapping[str, int | None]) -> Resize:
    known = {name: value for name, value in size.items() if value is not None}
    if known.keys() == {"height", "width"}:
        return (known["height"], known["width"])
    if known.keys() == {"shortest_edge"}:
        return known["shortest_edge"]
    raise wrong_value("size", known, "height and width, or shortest_edge")


def load_transformers(source: str, load_options: LoadOptions = DEFAULT_LOAD_OPTIONS) -> LoadedModel:
    """Load a vision model from `transformers` in float32, with the settings of its image processor.

    The config of the model determines which output is measured: logits, segmentation maps, boxes or
    features. For a model that also takes text (CLIP, SigLIP), the features of the image are
    measured. A masked autoencoder (ViTMAE) sees the whole image.

    Args:
        source: Folder of the model, or its id on the Hugging Face hub.
        load_options: Weights, size, normalization and device of the model.
    """
    library = require("transformers", "this model needs", "teka[audit]")
    source = source.removeprefix("transformers:")
    folder = expand_user(source)
    source = str(folder) if folder.is_dir() else source
    with silence_libraries():
        config, output, model_class = _read_config_and_class(library, source)
        if load_options.weights is None:
            module = _load_pretrained(model_class, source, output)
        else:
            if load_options.num_classes is not None:
                config.num_labels = load_options.num_classes
            expected = "a model that transformers can build from its config"
            with safe_loading(source, expected), load_options.fixed_seed():
                module = model_class.from_config(config, trust_remote_code=False)
            module = load_options.load_weights(module)
        vision = getattr(module.config, "vision_config", module.config)
        in_channels = int(getattr(vision, "num_channels", 3))
        own = load_preprocessing(source, in_channels, output)
    transform = own or Preprocessing(in_channels)
    side = getattr(vision, "image_size", None)
    if transform.resize is None and transform.crop is None and side is not None:
        transform = transform.resized_to(side)
    is_masked = hasattr(getattr(module, "embeddings", None), "random_masking")
    if is_masked or hasattr(module, "get_image_features"):
        module = ImageEncoder(module)
    elif module.main_input_name != "pixel_values":
        raise wrong_value("the input of the model", module.main_input_name, "'pixel_values'")
    known = {}
    if output != "features":
        class_names = read_class_names(module.config.id2label)
        known = {"class_names": class_names, "num_classes": module.config.num_labels}
    if own is not None and output == "boxes":
        known["note"] = "images are not resized by the image processor"
    return loaded_model_from_module(
        module.eval(),
        folder.name if folder.is_dir() else source,
        "transformers",
        transform,
        load_options,
        is_declared=own is not None,
        output=output,
        **known,
    )


class ImageEncoder(nn.Module):
    """Image encoder of a CLIP-like model, or a ViTMAE model that sees all patches."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.config = model.config
        if hasattr(self.config, "mask_ratio"):
            self.config.mask_ratio = 0.0

    def forward(self, pixel_values: Tensor) -> object:
        """Return the image features of a CLIP-like model, or the output of a ViTMAE model."""
        if hasattr(self.model, "get_image_features"):
            return self.model.get_image_features(pixel_values=pixel_values)
        num_patches = self.model.embeddings.patch_embeddings(pixel_values).shape[1]
        # The model sorts the patches by this noise. Without it, the model draws random noise.
        noise = torch.arange(num_patches, device=pixel_values.device).expand(len(pixel_values), -1)
        return self.model(pixel_values, noise=noise)


def _read_config_and_class(library: Any, source: str) -> tuple[Any, str, Any]:
    """Read the config of a model, and return it with the output kind and class of the model."""
    with safe_loading(source, "the folder or hub id of a vision model in transformers"):
        config = library.AutoConfig.from_pretrained(source, trust_remote_code=False)
        reject_kernel_from_hub(config)
    architecture = (config.architectures or ["ForImageClassification"])[0]
    ending = next((ending for ending in TASKS if architecture.endswith(ending)), None)
    if ending is None:
        endings = ", ".join(f"…{ending}" for ending in TASKS)
        raise wrong_value("the architecture of the model", architecture, f"one of {endings}")
    output, auto_class = TASKS[ending]
    if output == "auto":
        output = PROBLEMS.get(str(getattr(config, "problem_type", None)), output)
    return config, output, getattr(library, auto_class or architecture)


def reject_kernel_from_hub(config: Any) -> None:
    """Raise a ValueError if a config requests an attention kernel from the hub, which is code."""
    parts = [getattr(config, name, None) for name in getattr(config, "sub_configs", ())]
    for part in (config, *parts):
        name = getattr(part, "_attn_implementation", None)
        if "/" in str(name):
            raise wrong_value("attn_implementation", name, "one that comes with transformers")


def _load_pretrained(model_class: Any, source: str, output: str) -> Any:
    """Load a model with its pretrained weights, and check that no weights are missing."""
    with safe_loading(source, "a transformers model with safetensors weights"):
        settings = {"use_safetensors": True, "trust_remote_code": False, "dtype": torch.float32}
        module, info = model_class.from_pretrained(source, output_loading_info=True, **settings)
    missing = sorted(info["missing_keys"]) + sorted(map(str, info["mismatched_keys"]))
    if output == "features" and missing and all(name.startswith(POOLER) for name in missing):
        module.pooler = None  # like add_pooling_layer=False: the class token is measured
    elif missing:
        hint = f"{', '.join(missing[:3])} would be left at random."
        raise wrong_value("model", source, "weights for the whole model", hint)
    return module


def load_preprocessing(source: str, in_channels: int, output: str = "auto") -> Preprocessing | None:
    """Load the image processor of a model, and convert it to a `Preprocessing`.

    Args:
        source: Folder of the model, or its id on the Hugging Face hub.
        in_channels: Number of channels.
        output: Kind of the model's output. Detectors ("boxes") get images that are not resized.

    Returns:
        The preprocessing, or None if the folder has no image processor.
    """
    folder = Path(source)
    if folder.is_dir() and not any((folder / name).is_file() for name in PROCESSOR_FILES):
        return None
    library = require("transformers", "this model needs", "teka[audit]")
    with silence_libraries(), safe_loading(source, "a model with an image processor"):
        processor = library.AutoImageProcessor.from_pretrained(source, trust_remote_code=False)
    # Detectors resize to a shorter side within a limit and pad to the largest image of a batch.
    return preprocessing_from_processor(processor, in_channels, source, as_loaded=output == "boxes")
