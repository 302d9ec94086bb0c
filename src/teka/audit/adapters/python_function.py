"""Loading of the model that a function in a Python file returns."""

import importlib.util
import sys
from pathlib import Path

from torch import nn

from teka.audit.adapters.load_options import DEFAULT_LOAD_OPTIONS, LoadOptions
from teka.audit.adapters.loaded_model import LoadedModel, wrap_module
from teka.audit.adapters.preprocessing import Preprocessing
from teka.audit.model_call import calling
from teka.errors import EXTERNAL_ERRORS, error_message, wrong_argument, wrong_value
from teka.files import expand_user


def load_factory(spec: str, load_options: LoadOptions = DEFAULT_LOAD_OPTIONS) -> LoadedModel:
    """Load the model that a function returns, given as "path/module.py:function".

    The file is executed with all rights of the user. The function has no arguments and returns a
    `LoadedModel`, a module or a callable.
    """
    path, _, name = spec.rpartition(":")
    file = expand_user(path)
    if not (path.endswith(".py") and file.is_file() and name):
        raise wrong_value("model", spec, "path/module.py:function, an existing file")
    model = _call_function(file, name)
    if isinstance(model, LoadedModel):
        return model
    if not callable(model):
        expected = f"a function that returns a module or a callable, not {type(model).__name__}"
        raise wrong_value("model", spec, expected)
    label, transform = f"{file.stem}:{name}", Preprocessing()
    if isinstance(model, nn.Module):
        model = load_options.fill(model)
        return wrap_module(model, label, "factory", transform, load_options, is_declared=False)
    is_declared = load_options.mean is not None
    transform = load_options.fit(transform)
    return LoadedModel(
        label, "factory", model, transform=transform, declares_preprocessing=is_declared
    )


def _call_function(file: Path, name: str) -> object:
    spec = importlib.util.spec_from_file_location(f"teka_audited_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = str(file.resolve().parent)
    sys.path.insert(0, folder)
    sys.modules[spec.name] = module  # dataclasses and pickle look the module up here
    try:
        with calling():
            spec.loader.exec_module(module)
            if callable(function := getattr(module, name, None)):
                return function()
    # Name the file in the message of any error of the user's code. Interrupts pass through.
    except EXTERNAL_ERRORS as error:
        message = f"{file}:{name} raised {type(error).__name__}: {error_message(error)}"
        raise ValueError(message) from error
    finally:
        sys.path.remove(folder)
    known = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
    expected = f"a function of the file; it has {', '.join(known) or 'none'}"
    raise wrong_argument("model", f"{file}:{name}", expected)
