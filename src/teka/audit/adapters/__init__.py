"""Any vision model by a name or a path, as a function of pictures that can be audited."""

import importlib.util
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from teka.audit.adapters.matching import match_library
from teka.audit.adapters.onnx_model import load_onnx
from teka.audit.adapters.preprocessing import Preprocessing
from teka.audit.adapters.subject import Size, Subject, read_as, subject_of_module
from teka.audit.adapters.transformers_model import load_transformers
from teka.data import Normalize
from teka.errors import FOREIGN, first_line, require, wrong_value

__all__ = ["Loader", "Preprocessing", "Subject", "load"]

_WEIGHTS = (".bin", ".pt", ".pth", ".pkl", ".ckpt", ".safetensors", ".h5", ".npz")
_TENSORS_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
_PRESET_FIELDS = ("resize_size", "crop_size", "mean", "std", "interpolation")


def load_timm(name: str, *, input_size: Size = None, device: torch.device | str | None = None) -> Subject:
    """A model of timm, as `timm.create_model` takes it, such as "resnet50.a1_in1k"; the weights are downloaded."""
    library: Any = require("timm", "this model needs", "timm")
    with tensors_only(f"timm:{name}", "a model of timm"):
        module = library.create_model(name, pretrained=True).eval()
    config = library.data.resolve_model_data_config(module)
    own = _of_levels(library.data.create_transform(**config))
    read = match_library(own, read_data_config(config), f"timm:{name}", "its transform")
    transform, size = read.resized_to(input_size)
    return subject_of_module(module, name, "timm", transform, size, device, num_classes=module.num_classes)


def load_torchvision(name: str, *, input_size: Size = None, device: torch.device | str | None = None) -> Subject:
    """A classifier of torchvision, as `torchvision.models.get_model` takes it, with its best weights, downloaded."""
    models: Any = require("torchvision.models", "this model needs", "torchvision")
    with tensors_only(f"torchvision:{name}", "a classifier of torchvision"):
        weights = models.get_model_weights(name).DEFAULT
        module = models.get_model(name, weights=weights).eval()
    preset = weights.transforms()
    read = match_library(_of_levels(preset), read_preset(preset), f"torchvision:{name}", "its preset")
    transform, size = read.resized_to(input_size)
    classes, name = tuple(weights.meta["categories"]), f"{name} ({weights.name})"
    known = {"class_names": classes, "num_classes": len(classes)}
    return subject_of_module(module, name, "torchvision", transform, size, device, **known)


def _of_levels(transform: Callable[[Any], Tensor]) -> Callable[[np.ndarray], Tensor]:
    """A transform of Pillow's pictures as one of their levels (H, W, C)."""
    from PIL import Image

    return lambda levels: transform(Image.fromarray(levels[..., 0] if levels.shape[2] == 1 else levels))


@contextmanager
def tensors_only(model: str, kind: str) -> Iterator[None]:
    """Every `torch.load` within reads tensors only, whatever its caller asked for; what is raised is one line."""
    before = os.environ.get(_TENSORS_ONLY)
    os.environ[_TENSORS_ONLY] = "1"
    try:
        with read_as(model, f"{kind} with trained weights"):
            yield
    finally:
        if before is None:
            del os.environ[_TENSORS_ONLY]
        else:
            os.environ[_TENSORS_ONLY] = before


def read_data_config(config: dict[str, Any]) -> Preprocessing:
    """What timm's transforms_imagenet_eval (data/transforms_factory.py) makes of a config, but for borders."""
    channels, height, width = config["input_size"]
    share = config.get("crop_pct") or 0.875
    enlarged = (math.floor(height / share), math.floor(width / share))
    mode = config.get("crop_mode") or "center"
    if mode == "border" or (mode == "center" and enlarged[0] != enlarged[1]):
        raise wrong_value("crop_mode", f"{mode}, {height} × {width}", "'squash', or 'center' of a square")
    resize = enlarged[0] if mode == "center" else enlarged
    normalization = _normalization(config["mean"], config["std"])
    crop = (height, width)
    return Preprocessing(channels, resize, config["interpolation"], crop, normalization, library="torchvision")


def read_preset(preset: Any) -> Preprocessing:
    """The preprocessing of torchvision's ImageClassification (transforms/_presets.py), as `weights.transforms()` is."""
    missing = [field for field in _PRESET_FIELDS if not hasattr(preset, field)]
    if missing:
        raise wrong_value("model", type(preset).__name__, f"a classifier's preset; it has no {', '.join(missing)}")
    (shorter,), (side,) = preset.resize_size, preset.crop_size
    normalization, kernel = _normalization(preset.mean, preset.std), preset.interpolation.value
    return Preprocessing(len(preset.mean), shorter, kernel, (side, side), normalization, library="torchvision")


def _normalization(mean: Any, deviation: Any) -> Normalize:
    return Normalize(tuple(map(float, mean)), tuple(map(float, deviation)))


@dataclass(frozen=True)
class Loader:
    """A family of models that `load` knows."""

    form: str  # how they are named, in words
    fits: Callable[[str], object]  # whether a name is one of them
    # The model of a name, an input size, a device and the folder of its data's files, or None for each.
    read: Callable[[str, Size, torch.device | str | None, str | None], Subject]


def load(
    spec: str,
    *,
    input_size: Size = None,
    num_classes: int | None = None,
    device: torch.device | str | None = None,
    data_dir: str | None = None,
    loaders: Sequence[Loader] = (),
) -> Subject:
    """The model that a name or a path stands for, ready to be audited.

    Nothing is unpickled. Only "path/module.py:function" runs code that is not of an installed library.

    Args:
        spec: One of `FORMS`, or what a further loader takes. A path that exists is meant before anything else.
        input_size: Size of the model's images, one side or (height, width), for models that take any.
        num_classes: Number of classes that the model must have; None takes any.
        device: Where it runs; None is the CPU.
        data_dir: Folder with the data set's files, for loaders of models that know their data.
        loaders: Loaders that are asked before those of this library.

    Raises:
        ImportError: A library that is needed is not installed; the message says what to install.
        ValueError: No such model, one that cannot be read, or one of another size or number of classes.
    """
    if str(device).startswith("meta"):
        raise wrong_value("device", str(device), "a device that computes")
    try:
        torch.zeros(1, device=device)
    # What torch raises depends on why the device is not there.
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise wrong_value("device", str(device), f"a device that torch can use ({first_line(error)})") from error
    known = (*loaders, *LOADERS)
    loader = next((one for one in known if one.fits(spec)), None)
    if loader is None:
        expected = f"one of: {'; '.join(one.form for one in known)}"
        if Path(spec).suffix in _WEIGHTS:
            expected = "a model: a file of weights alone does not say what they are for; write path/module.py:function"
        raise wrong_value("model", spec, expected)
    subject = loader.read(spec, input_size, device, data_dir)
    if num_classes is not None and subject.num_classes not in (None, num_classes):
        expected = f"a model of {num_classes} classes, as the data have; it has {subject.num_classes}"
        raise wrong_value("model", spec, expected)
    return subject


def load_factory(spec: str, *, input_size: Size = None, device: torch.device | str | None = None) -> Subject:
    """What a function without arguments makes, "path/module.py:function"; the file is executed, with all rights."""
    path, _, name = spec.rpartition(":")
    file = Path(path).expanduser()
    if not (path.endswith(".py") and file.is_file() and name):
        raise wrong_value("model", spec, "path/module.py:function, an existing file")
    made = _make(file, name)
    if isinstance(made, Subject):
        return made
    (transform, size), label = Preprocessing().resized_to(input_size), f"{file.stem}:{name}"
    if isinstance(made, nn.Module):
        return subject_of_module(made, label, "factory", transform, size, device)
    if not callable(made):
        raise wrong_value("model", spec, f"a function that returns a module or a callable, not {type(made).__name__}")
    return Subject(label, "factory", made, input_size=size, transform=transform)


def _make(file: Path, name: str) -> object:
    described = importlib.util.spec_from_file_location(f"teka_audited_{file.stem}", file)
    if described is None or described.loader is None:
        raise wrong_value("model", str(file), "a Python file")
    module = importlib.util.module_from_spec(described)
    folder = str(file.resolve().parent)
    sys.path.insert(0, folder)
    sys.modules[described.name] = module  # as dataclasses and pickles of the file look there
    try:
        described.loader.exec_module(module)
        factory: Callable[[], object] | None = getattr(module, name, None)
        if callable(factory):
            return factory()
    # Whatever the user's code raises is named with the file; an interrupt goes through.
    except FOREIGN as error:
        raise ValueError(f"{file}:{name} raised {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(folder)
    defined = [one for one, value in vars(module).items() if callable(value) and not one.startswith("_")]
    raise wrong_value("model", f"{file}:{name}", f"a function of the file; it has {', '.join(defined) or 'none'}")


def _is_transformers(spec: str) -> object:
    is_folder = spec.startswith("transformers:") or (Path(spec).expanduser() / "config.json").is_file()
    return is_folder or (not Path(spec).exists() and re.fullmatch(r"(?!\.)[\w.-]+/[\w.-]+", spec))


def _loader(form: str, fits: Callable[[str], object], read: Callable[..., Subject], prefix: str = "") -> Loader:
    """A loader of models that do not know their data; what is read comes after a prefix."""
    return Loader(form, fits, lambda spec, size, on, _: read(spec.removeprefix(prefix), input_size=size, device=on))


TRANSFORMERS = "a folder or hub id (owner/name, or transformers:ID) of transformers"
LOADERS = (
    _loader("timm:NAME", re.compile("timm:.").match, load_timm, "timm:"),
    _loader("torchvision:NAME", re.compile("torchvision:.").match, load_torchvision, "torchvision:"),
    _loader("path/module.py:function", re.compile(r"\.py:[^/]*$").search, load_factory),
    _loader("a file.onnx", re.compile(r"\.onnx\Z").search, load_onnx),
    _loader(TRANSFORMERS, _is_transformers, load_transformers, "transformers:"),
)
FORMS = tuple(one.form for one in LOADERS)
