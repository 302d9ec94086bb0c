"""Loading of vision models by name or path, as functions of images that can be audited."""

import importlib.util
import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from teka.audit.adapters.load_options import DEFAULT_LOAD_OPTIONS, LoadOptions
from teka.audit.adapters.loaded_model import (
    CLASSIFIER,
    ENCODER,
    LIST_DETECTOR,
    SEGMENTER,
    LoadedModel,
    tensors_only,
    wrap_module,
)
from teka.audit.adapters.onnx_model import OnnxFunction, load_onnx
from teka.audit.adapters.preprocessing import Preprocessing
from teka.audit.adapters.torch_programs import is_script, load_exported, load_script
from teka.audit.adapters.transformers_model import load_transformers
from teka.audit.adapters.verify_transform import verify_against_library
from teka.audit.model_call import calling
from teka.audit.model_output import num_classes_of
from teka.data import Normalize
from teka.errors import (
    EXTERNAL_ERRORS,
    error_message,
    first_line,
    require,
    wrong_argument,
    wrong_value,
)
from teka.files import expand_user

__all__ = ["LoadOptions", "LoadedModel", "Loader", "Preprocessing", "load"]

_WEIGHTS = (".bin", ".pt", ".pth", ".pkl", ".ckpt", ".safetensors", ".h5", ".npz")
_WITH_WEIGHTS = {True: " with trained weights", False: ""}
_PRESET_FIELDS = ("resize_size", "mean", "std", "interpolation")
_PRESET_TASKS = {"SemanticSegmentation": SEGMENTER, "ObjectDetection": LIST_DETECTOR}


def load_timm(name: str, load_options: LoadOptions = DEFAULT_LOAD_OPTIONS) -> LoadedModel:
    """Load a model of timm by its name, such as "resnet50.a1_in1k", with its image transform.

    Pretrained weights are downloaded unless `load_options` has other weights.
    """
    library: Any = require("timm", "this model needs", "timm")
    with (
        tensors_only(
            f"timm:{name}", f"a model of timm{_WITH_WEIGHTS[load_options.weights is None]}"
        ),
        load_options.drawn(),
    ):
        module = library.create_model(
            name, pretrained=load_options.weights is None, **load_options.classes_made
        ).eval()
    load_options.fill(module)
    config = library.data.resolve_model_data_config(module)
    own = _of_levels(library.data.create_transform(**config))
    read = verify_against_library(own, read_data_config(config), f"timm:{name}", "its transform")
    transform, size = load_options.fit(read)
    # Models without a classifier, such as self-supervised ones, have 0 classes and return features.
    task, num_classes = (CLASSIFIER, module.num_classes) if module.num_classes else (ENCODER, None)
    return wrap_module(
        module, name, "timm", transform, size, load_options.device, task, num_classes=num_classes
    )


def load_torchvision(name: str, load_options: LoadOptions = DEFAULT_LOAD_OPTIONS) -> LoadedModel:
    """Load a model of torchvision by its name, with the transform of its best weights.

    The best weights are downloaded unless `load_options` has other weights.
    """
    models: Any = require("torchvision.models", "this model needs", "torchvision")
    own = load_options.weights is None
    with (
        tensors_only(f"torchvision:{name}", f"a model of torchvision{_WITH_WEIGHTS[own]}"),
        load_options.drawn(),
    ):
        weights = models.get_model_weights(name).DEFAULT
        preset = weights.transforms()
        task = _PRESET_TASKS.get(type(preset).__name__, CLASSIFIER)
        # Without this, pretrained weights of the backbone would be downloaded.
        bare = {} if own or task is CLASSIFIER else {"weights_backbone": None}
        module = models.get_model(
            name, weights=weights if own else None, **bare, **load_options.classes_made
        ).eval()
    load_options.fill(module)
    read = verify_against_library(
        _of_levels(preset), read_preset(preset), f"torchvision:{name}", "its preset"
    )
    transform, size = load_options.fit(read)
    names = tuple(weights.meta["categories"])
    if load_options.num_classes in (None, len(names)):
        known = {"class_names": names, "num_classes": len(names)}
    else:
        known = {"num_classes": load_options.num_classes}
    name = f"{name} ({weights.name})" if own else name
    return wrap_module(
        module, name, "torchvision", transform, size, load_options.device, task, **known
    )


def _of_levels(transform: Callable[[Any], Tensor]) -> Callable[[np.ndarray], Tensor]:
    """Wrap a transform of Pillow images as a function of uint8 arrays (H, W, C)."""
    from PIL import Image

    return lambda levels: transform(
        Image.fromarray(levels[..., 0] if levels.shape[2] == 1 else levels)
    )


def read_data_config(config: dict[str, Any]) -> Preprocessing:
    """Return the preprocessing of a timm config, as `timm.data.transforms_imagenet_eval` makes it.

    Raises:
        ValueError: The config crops with a border or from a rectangular resize.
    """
    channels, height, width = config["input_size"]
    share = config.get("crop_pct") or 0.875
    enlarged = (math.floor(height / share), math.floor(width / share))
    mode = config.get("crop_mode") or "center"
    if mode == "border" or (mode == "center" and enlarged[0] != enlarged[1]):
        raise wrong_argument(
            "crop_mode", f"{mode}, {height} × {width}", "'squash', or 'center' of a square"
        )
    resize = enlarged[0] if mode == "center" else enlarged
    normalization = _normalization(config["mean"], config["std"])
    crop = (height, width)
    return Preprocessing(
        channels, resize, config["interpolation"], crop, normalization, library="torchvision"
    )


def read_preset(preset: Any) -> Preprocessing:
    """Return the preprocessing of a torchvision preset, such as `weights.transforms()`.

    Presets of segmentation models do not crop, and those of detectors leave images unchanged.

    Raises:
        ValueError: The preset is of another task.
    """
    if type(preset).__name__ == "ObjectDetection":
        return Preprocessing(3)
    missing = [field for field in _PRESET_FIELDS if not hasattr(preset, field)]
    if missing:
        raise wrong_value(
            "model", type(preset).__name__, f"a classifier's preset; it has no {', '.join(missing)}"
        )
    (shorter,), crop = preset.resize_size, tuple(getattr(preset, "crop_size", ())) * 2
    normalization, kernel = _normalization(preset.mean, preset.std), preset.interpolation.value
    crop = (crop[0], crop[1]) if crop else None
    return Preprocessing(
        len(preset.mean), shorter, kernel, crop, normalization, library="torchvision"
    )


def _normalization(mean: Any, deviation: Any) -> Normalize:
    return Normalize(tuple(map(float, mean)), tuple(map(float, deviation)))


@dataclass(frozen=True)
class Loader:
    """Family of models that `load` recognizes by the form of the name.

    Args:
        form: Form of the names, for messages.
        fits: Function that returns True if a name is of this family.
        read: Function that loads a model by its name and options.
        takes_weights: Whether the model can be loaded with other weights than its own.

    >>> import torch
    >>> from teka.audit.adapters import Loader, LoadedModel, load
    >>> def read(spec, load_options):
    ...     return LoadedModel(spec, "mean", lambda images: images.mean(dim=(2, 3)))
    >>> means = Loader("mean", "mean".__eq__, read)
    >>> load("mean", loaders=[means]).function(torch.ones(2, 3, 4, 4)).shape
    torch.Size([2, 3])
    """

    form: str
    fits: Callable[[str], object]
    read: Callable[[str, LoadOptions], LoadedModel]
    takes_weights: bool = False


def load(
    spec: str,
    load_options: LoadOptions = DEFAULT_LOAD_OPTIONS,
    *,
    loaders: Sequence[Loader] = (),
    trust: bool = False,
) -> LoadedModel:
    """Load a model by its name or path, ready to be audited.

    Three forms run code that is not part of an installed library. "path/module.py:function"
    executes the file. Files of TorchScript and of `torch.export` contain a program, so they need
    `trust=True`. All other files are read as data, without unpickling objects except tensors.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from teka.audit.adapters import load
    >>> code = "import torch; make = lambda: torch.nn.Conv2d(3, 8, 3)"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "models.py").write_text(code)
    ...     load(f"{folder}/models.py:make").kind
    'factory'

    Args:
        spec: A name or path in one of `FORMS`, or in the form of an additional loader. A path
            that exists takes precedence.
        load_options: Weights, size, normalization and device of the model.
        loaders: Additional loaders, which are tried first.
        trust: Allow files that contain a program, like `LoadOptions(trust=True)`.

    Raises:
        ImportError: A required library is not installed. The message says what to install.
        ValueError: The model does not exist, cannot be read, is not trusted, or has a different
            size or number of classes.
    """
    if trust:
        load_options = replace(load_options, trust=trust)
    device = load_options.device
    if str(device).startswith("meta"):
        raise wrong_value("device", str(device), "a device that computes")
    try:
        torch.zeros(1, device=device)
    # The class of the error depends on why torch cannot use the device.
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise wrong_value(
            "device", str(device), f"a device that torch can use ({first_line(error)})"
        ) from error
    known = (*loaders, *LOADERS)
    loader = next((loader for loader in known if loader.fits(spec)), None)
    if loader is None:
        expected = f"one of: {' | '.join(loader.form for loader in known)}"
        if Path(spec).suffix in _WEIGHTS:
            expected = (
                "a model; a file of weights alone does not say which, "
                "so name the model, and this as its weights"
            )
        raise wrong_value("model", spec, expected)
    if load_options.weights is not None and not loader.takes_weights:
        raise wrong_value(
            "weights", str(load_options.weights), f"None for {loader.form}: it has its own"
        )
    subject = loader.read(spec, load_options)
    if load_options.output_name is not None and not isinstance(subject.function, OnnxFunction):
        subject = subject.choosing_output(load_options.output_name)
    if load_options.num_classes is not None and subject.num_classes not in (
        None,
        num_classes_of(load_options.num_classes),
    ):
        expected = f"a model of {load_options.num_classes} classes; it has {subject.num_classes}"
        raise wrong_value("model", spec, expected)
    return subject


def load_factory(spec: str, load_options: LoadOptions = DEFAULT_LOAD_OPTIONS) -> LoadedModel:
    """Load the model that a function returns, given as "path/module.py:function".

    The file is executed with all rights of the user. The function has no arguments and returns a
    `LoadedModel`, a module or a callable.
    """
    path, _, name = spec.rpartition(":")
    file = expand_user(path)
    if not (path.endswith(".py") and file.is_file() and name):
        raise wrong_value("model", spec, "path/module.py:function, an existing file")
    made = _make(file, name)
    if isinstance(made, LoadedModel):
        return made
    transform, size = load_options.fit(Preprocessing())
    label = f"{file.stem}:{name}"
    if isinstance(made, nn.Module):
        return wrap_module(
            load_options.fill(made), label, "factory", transform, size, load_options.device
        )
    if not callable(made):
        raise wrong_value(
            "model",
            spec,
            f"a function that returns a module or a callable, not {type(made).__name__}",
        )
    return LoadedModel(label, "factory", made, input_size=size, transform=transform)


def _make(file: Path, name: str) -> object:
    described = importlib.util.spec_from_file_location(f"teka_audited_{file.stem}", file)
    if described is None or described.loader is None:
        raise wrong_value("model", str(file), "a Python file")
    module = importlib.util.module_from_spec(described)
    folder = str(file.resolve().parent)
    sys.path.insert(0, folder)
    sys.modules[described.name] = module  # dataclasses and pickle look the module up here
    try:
        with calling():
            described.loader.exec_module(module)
            factory: Callable[[], object] | None = getattr(module, name, None)
            if callable(factory):
                return factory()
    # Name the file in the message of any error of the user's code. Interrupts pass through.
    except EXTERNAL_ERRORS as error:
        raise ValueError(
            f"{file}:{name} raised {type(error).__name__}: {error_message(error)}"
        ) from error
    finally:
        sys.path.remove(folder)
    defined = [
        key for key, value in vars(module).items() if callable(value) and not key.startswith("_")
    ]
    raise wrong_argument(
        "model", f"{file}:{name}", f"a function of the file; it has {', '.join(defined) or 'none'}"
    )


def _is_transformers(spec: str) -> object:
    is_folder = spec.startswith("transformers:") or (expand_user(spec) / "config.json").is_file()
    return is_folder or (not Path(spec).exists() and re.fullmatch(r"(?!\.)[\w.-]+/[\w.-]+", spec))


def without(
    prefix: str, read: Callable[[str, LoadOptions], LoadedModel]
) -> Callable[[str, LoadOptions], LoadedModel]:
    """Return a loader that removes a prefix from the name."""
    return lambda spec, load_options: read(spec.removeprefix(prefix), load_options)


TRANSFORMERS = "a folder or hub id (owner/name, or transformers:ID) of transformers"
LOADERS = (
    Loader(
        "timm:NAME", re.compile("timm:.").match, without("timm:", load_timm), takes_weights=True
    ),
    Loader(
        "torchvision:NAME",
        re.compile("torchvision:.").match,
        without("torchvision:", load_torchvision),
        True,
    ),
    Loader(
        "path/module.py:function",
        re.compile(r"\.py:[^/]*$").search,
        load_factory,
        takes_weights=True,
    ),
    Loader("a file.onnx", re.compile(r"\.onnx\Z").search, load_onnx),
    Loader("a file.pt2 of torch.export", re.compile(r"\.pt2\Z").search, load_exported),
    Loader("a file of TorchScript", is_script, load_script),
    Loader(
        TRANSFORMERS,
        _is_transformers,
        without("transformers:", load_transformers),
        takes_weights=True,
    ),
)
FORMS = tuple(loader.form for loader in LOADERS)
