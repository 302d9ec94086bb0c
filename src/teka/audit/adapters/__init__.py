"""Any vision model by a name or a path, as a function of pictures that can be audited."""

import importlib.util
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from teka.audit.adapters.onnx_model import load_onnx
from teka.audit.adapters.preprocessing import Preprocessing
from teka.audit.adapters.subject import Size, Subject, subject_of_module
from teka.audit.adapters.timm_and_torchvision import load_timm, load_torchvision
from teka.audit.adapters.transformers_model import load_transformers
from teka.checks import height_and_width
from teka.errors import FOREIGN, wrong_value

__all__ = ["FORMS", "Loader", "Preprocessing", "Subject", "load"]

_WEIGHTS = (".bin", ".pt", ".pth", ".pkl", ".ckpt", ".safetensors", ".h5", ".npz")


@dataclass(frozen=True)
class Loader:
    """A family of models that `load` knows.

    Args:
        form: How they are named, in words.
        fits: Whether a name is one of them.
        read: The model of a name, of an input size and on a device that may be None, with the folder of its data set's
            files or None.
    """

    form: str
    fits: Callable[[str], bool]
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
    _check_device(device)
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
    """What a function in a Python file, "path/module.py:function", makes. The file is executed, with all rights.

    The function is called without arguments, with the file's folder importable as when the file is run. It returns a
    `torch.nn.Module`, which is left in the mode it comes in, or any callable of images (B, C, H, W) in [0, 1], or a
    `Subject` for full say over preprocessing.
    """
    path, _, name = spec.rpartition(":")
    file = Path(path).expanduser()
    if not (path.endswith(".py") and file.is_file() and name):
        raise wrong_value("model", spec, "path/module.py:function, an existing file")
    made = _make(file, name)
    if isinstance(made, Subject):
        return made
    size = None if input_size is None else height_and_width("input_size", input_size)
    transform, label = Preprocessing(resize=size), f"{file.stem}:{name}"
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


def _check_device(device: torch.device | str | None) -> None:
    if str(device).startswith("meta"):
        raise wrong_value("device", str(device), "a device that computes")
    try:
        torch.zeros(1, device=device)
    # What torch raises depends on why the device is not there.
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise wrong_value("device", str(device), f"a device that torch can use ({reason})") from error


def _is_transformers(spec: str) -> bool:
    is_id = not Path(spec).exists() and re.fullmatch(r"[\w.-]+/[\w.-]+", spec) is not None and not spec.startswith(".")
    return spec.startswith("transformers:") or (Path(spec).expanduser() / "config.json").is_file() or is_id


def _loader(form: str, fits: Callable[[str], bool], read: Callable[..., Subject], prefix: str = "") -> Loader:
    """A loader of models that do not know their data; what is read comes after a prefix."""
    return Loader(
        form, fits, lambda spec, size, device, _: read(spec.removeprefix(prefix), input_size=size, device=device)
    )


LOADERS = (
    _loader("timm:NAME", lambda spec: re.match("timm:.", spec) is not None, load_timm, "timm:"),
    _loader(
        "torchvision:NAME", lambda spec: re.match("torchvision:.", spec) is not None, load_torchvision, "torchvision:"
    ),
    _loader("path/module.py:function", lambda spec: re.search(r"\.py:[^/]*$", spec) is not None, load_factory),
    _loader("a file.onnx", lambda spec: spec.endswith(".onnx"), load_onnx),
    _loader(
        "a folder or hub id (owner/name, or transformers:ID) of transformers",
        _is_transformers,
        load_transformers,
        "transformers:",
    ),
)
FORMS = tuple(one.form for one in LOADERS)
