"""Loaders of vision models by name or path, for example from timm, transformers or an ONNX file."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from teka.audit.adapters.loaded_model import DEFAULT_LOAD_OPTIONS, LoadedModel, LoadOptions
from teka.audit.adapters.onnx_model import load_onnx
from teka.audit.adapters.preprocessing import Preprocessing
from teka.audit.adapters.programs import (
    is_torchscript_file,
    load_exported_program,
    load_from_python_file,
    load_torchscript,
)
from teka.audit.adapters.timm_torchvision import load_timm, load_torchvision
from teka.audit.adapters.transformers_model import load_transformers
from teka.audit.model_output import num_classes_of
from teka.checks import check_device
from teka.errors import wrong_value
from teka.files import expand_user

__all__ = ["LoadOptions", "LoadedModel", "Loader", "Preprocessing", "load"]

_WEIGHTS = (".bin", ".pt", ".pth", ".pkl", ".ckpt", ".safetensors", ".h5", ".npz")
_FILES = ("/", ".onnx", ".pt2", *_WEIGHTS)  # ends of paths


@dataclass(frozen=True)
class Loader:
    """Loader of one family of models, such as the models of timm.

    Args:
        form: Description of the names or paths that the loader accepts, for error messages.
        fits: Function that returns a true value if the loader accepts a name or path.
        read: Function that loads a model by its name or path, with `LoadOptions`.
        takes_weights: Whether the option `weights` can replace the weights of these models.

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
    """Load a model for an audit by its name or path.

    Only three kinds of models run code that is not part of an installed library. A Python file is
    executed if you name it as "path/module.py:function". Files of TorchScript and of `torch.export`
    contain a program, so they need `trust=True`. All other files are read as data, and no objects
    except tensors are unpickled.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from teka.audit.adapters import load
    >>> code = "import torch; make = lambda: torch.nn.Conv2d(3, 8, 3)"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "models.py").write_text(code)
    ...     load(f"{folder}/models.py:make").kind
    'factory'

    Args:
        spec: A name or path that one of `LOADERS` or of the additional loaders accepts. An existing
            path takes precedence.
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
    if load_options.device is not None:
        check_device(load_options.device)
    is_path = spec.startswith((".", "/", "~")) or spec.count("/") > 1 or spec.endswith(_FILES)
    # A prefix such as "timm:" or a function such as "module.py:make" is not part of a path.
    if is_path and not re.search(r"^\w+:|\.py:", spec) and not expand_user(spec).exists():
        raise wrong_value("model", spec, "the name of a model, or a path that exists")
    known = (*loaders, *LOADERS)
    loader = next((loader for loader in known if loader.fits(spec)), None)
    if loader is None:
        expected = f"one of: {' | '.join(loader.form for loader in known)}"
        hint = ""
        if Path(spec).suffix in _WEIGHTS:
            expected = "the name of a model"
            hint = (
                "A file of weights does not contain the architecture. Name a model, such as "
                "timm:resnet18 or module.py:function, and pass this file as its weights."
            )
        raise wrong_value("model", spec, expected, hint)
    if load_options.weights is not None and not loader.takes_weights:
        expected = f"None for {loader.form}, which has its own weights"
        raise wrong_value("weights", str(load_options.weights), expected)
    model = loader.read(spec, load_options)
    # The output of an ONNX file is chosen when it is loaded.
    if load_options.output_name is not None and model.kind != "onnx":
        model = model.with_output(load_options.output_name)
    wanted = load_options.num_classes
    if wanted is not None and model.num_classes != num_classes_of(wanted):
        hint = f"It has {model.num_classes or 'an unknown number'}."
        raise wrong_value("model", spec, f"a model of {wanted} classes", hint)
    return model


def _is_transformers(spec: str) -> object:
    is_folder = spec.startswith("transformers:") or (expand_user(spec) / "config.json").is_file()
    return is_folder or (not Path(spec).exists() and re.fullmatch(r"(?!\.)[\w.-]+/[\w.-]+", spec))


LOADERS = (
    Loader("timm:NAME", re.compile("timm:.").match, load_timm, True),
    Loader("torchvision:NAME", re.compile("torchvision:.").match, load_torchvision, True),
    Loader(
        "path/module.py:function", re.compile(r"\.py:[^/]*$").search, load_from_python_file, True
    ),
    Loader("a file.onnx", re.compile(r"\.onnx\Z").search, load_onnx),
    Loader("a file.pt2 of torch.export", re.compile(r"\.pt2\Z").search, load_exported_program),
    Loader("a file of TorchScript", is_torchscript_file, load_torchscript),
    Loader(
        "the folder or hub id of a transformers model (owner/name, transformers:ID)",
        _is_transformers,
        load_transformers,
        True,
    ),
)
