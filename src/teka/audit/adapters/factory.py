"""A model that a function in a file of the user's own makes."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from teka.audit.adapters.preprocessing import Preprocessing
from teka.audit.adapters.subject import Subject, subject_of_module
from teka.checks import height_and_width
from teka.errors import FOREIGN, wrong_value

KIND = "factory"


def load_factory(
    spec: str, *, input_size: int | tuple[int, int] | None = None, device: torch.device | str | None = None
) -> Subject:
    """What a function in a Python file makes. The file is executed, with all rights of the process.

    The function is called without arguments, with the file's folder importable as when the file is run. It returns a
    `torch.nn.Module` or any callable of images (B, C, H, W) in [0, 1], or a `Subject` for full say over preprocessing.
    A module is left in the mode it comes in.

    Args:
        spec: "path/module.py:function".
        input_size: Size of the model's images, one side or (height, width); by default that of the data.
        device: Where a module runs; None leaves it.

    Raises:
        ValueError: No such file or function, code that raises, or something that is no model.
    """
    path, _, name = spec.rpartition(":")
    file = Path(path).expanduser()
    if not (path.endswith(".py") and file.is_file() and name):
        raise wrong_value("model", spec, "path/module.py:function, an existing file")
    made = _make(file, name)
    if isinstance(made, Subject):
        return made
    size = None if input_size is None else height_and_width("input_size", input_size)
    transform = Preprocessing(resize=size)
    label = f"{file.stem}:{name}"
    if isinstance(made, nn.Module):
        return subject_of_module(made, name=label, kind=KIND, transform=transform, input_size=size, device=device)
    if not callable(made):
        raise wrong_value("model", spec, f"a function that returns a module or a callable, not {type(made).__name__}")
    return Subject(label, KIND, made, input_size=size, transform=transform)


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
