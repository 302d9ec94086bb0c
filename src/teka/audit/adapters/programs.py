"""Loaders of files that contain the code of a model: Python, TorchScript and `torch.export`."""

import importlib.util
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from teka.audit.adapters.loaded_model import (
    DEFAULT_LOAD_OPTIONS,
    LoadedModel,
    LoadOptions,
    loaded_model_from_module,
    safe_loading,
    silence_libraries,
    wrap_function,
)
from teka.audit.adapters.preprocessing import Images, Preprocessing
from teka.audit.model_call import model_code_context
from teka.errors import EXTERNAL_ERRORS, error_message, unknown_name_error, wrong_value
from teka.files import expand_user


def run_in_batches(
    program: Callable[[Tensor], dict[str, Tensor]], images: Tensor, batch_size: int | None
) -> dict[str, Tensor]:
    """Run a program on any number of images, even if it requires a fixed batch size.

    A smaller last batch is filled with copies of its last image, whose outputs are dropped.

    Args:
        program: Function from a batch to outputs (B, …) by name.
        images: Images (B, …).
        batch_size: Batch size that the program requires, or None for any size.
    """
    if batch_size is None or not len(images):
        return program(images)
    batches = []
    for batch in images.split(batch_size):
        copies = batch[-1:].expand(batch_size - len(batch), *batch.shape[1:])
        outputs = program(torch.cat([batch, copies]))
        batches.append({name: values[: len(batch)] for name, values in outputs.items()})
    return {name: torch.cat([outputs[name] for outputs in batches]) for name in batches[0]}


def read_input_shape(
    shape: Sequence[object],
) -> tuple[int | None, int | None, tuple[int, int] | None]:
    """Return the batch size, number of channels, and image size that the input of a model requires.

    Each of them is None if the model accepts any value.

    Args:
        shape: Shape (B, C, H, W) of the input. A size that may vary is symbolic, a name or −1.
    """
    batch_size, channels, height, width = (
        size if isinstance(size, int) and size > 0 else None for size in shape
    )
    size = None if height is None or width is None else (height, width)
    return batch_size, channels, size


class ExportedModule(nn.Module):
    """Module that runs a program from `torch.export` on batches of any size.

    Args:
        module: The program as a module.
        batch_size: Batch size that the program requires, or None for any size.
    """

    def __init__(self, module: nn.Module, batch_size: int | None) -> None:
        super().__init__()
        self.program = module
        self.batch_size = batch_size
        for part in self.modules():
            part.training = False

    def train(self, mode: bool = True) -> "ExportedModule":
        """Ignore the mode, because an exported program has no training mode."""
        return self

    def forward(self, images: Images) -> Any:
        """Run the program on images, if needed in batches of its fixed size."""
        return run_in_batches(lambda batch: {"": self.program(batch)}, images, self.batch_size)[""]


def is_torchscript_file(spec: str) -> bool:
    """Return True if a path leads to a file that contains a TorchScript program."""
    file = expand_user(spec)
    if file.suffix == ".pt2" or not file.is_file():
        return False
    try:
        with zipfile.ZipFile(file) as archive:
            return any("/code/" in name for name in archive.namelist())
    except EXTERNAL_ERRORS:  # not a ZIP archive, or a damaged one
        return False


def check_trusted(path: str, load_options: LoadOptions) -> None:
    """Check that the user trusts a file that contains a program.

    Args:
        path: The file, for the error message.
        load_options: Options of the user. Unless `trust` is True, an error is raised.

    Raises:
        ValueError: The user does not trust the file.
    """
    if not load_options.trust:
        raise ValueError(
            f"trust must be True to load {path!r}, got False. The program in this file can run any "
            "code with all your rights. If you trust the author of the file, pass --trust (in "
            "Python, trust=True)."
        )


def load_torchscript(path: str, load_options: LoadOptions) -> LoadedModel:
    """Load a TorchScript model from a file that `torch.jit.save` wrote."""
    check_trusted(path, load_options)
    with safe_loading(path, "a program of TorchScript"), silence_libraries(), model_code_context():
        module = torch.jit.load(expand_user(path), map_location=load_options.device or "cpu").eval()
    tensors = module.state_dict().values()
    channels = next((tensor.shape[1] for tensor in tensors if tensor.ndim == 4), None)
    transform = Preprocessing(channels if channels in (1, 3) else None)
    return loaded_model_from_module(
        module, Path(path).stem, "torchscript", transform, load_options, is_declared=False
    )


def _max_batch_size(size: Any, program: torch.export.ExportedProgram) -> int | None:
    """Return the largest batch size that an exported program accepts, or None for any size.

    Args:
        size: Batch size in the input shape of the program, which may be symbolic.
        program: The program.
    """
    if isinstance(size, int):
        return size
    allowed = program.range_constraints.get(size.node.expr)
    largest = "" if allowed is None else str(allowed.upper)  # a SymPy number, may be infinite
    return int(largest) if largest.isdigit() else None


def load_exported_program(path: str, load_options: LoadOptions) -> LoadedModel:
    """Load a program from a file that `torch.export.save` wrote.

    The program must have a single input, which are images (B, C, H, W).
    """
    check_trusted(path, load_options)
    with safe_loading(path, "a program of torch.export"), silence_libraries(), model_code_context():
        program = torch.export.load(expand_user(path))
        program_module = program.module()
    names = program.graph_signature.user_inputs
    inputs = [node for node in program.graph.nodes if node.name in names]
    shapes: list[Any] = [getattr(node.meta.get("val"), "shape", ()) for node in inputs]
    if len(shapes) != 1 or len(shapes[0]) != 4:
        given = [tuple(shape) for shape in shapes]
        raise wrong_value(f"the inputs of {path}", given, "one of images, with four axes")
    _, channels, size = read_input_shape(shapes[0])
    module = ExportedModule(program_module, _max_batch_size(shapes[0][0], program))
    transform = Preprocessing(channels, size)
    return loaded_model_from_module(
        module, Path(path).stem, "torch.export", transform, load_options, is_declared=False
    )


def load_from_python_file(
    location: str, load_options: LoadOptions = DEFAULT_LOAD_OPTIONS
) -> LoadedModel:
    """Execute a Python file, and load the model that one of its functions returns.

    The code runs with all rights of the user. The function takes no arguments and returns a
    `LoadedModel`, a module or another callable.

    Args:
        location: File and function as "path/module.py:function".
        load_options: Weights, size, normalization and device of the model.
    """
    path, _, name = location.rpartition(":")
    file = expand_user(path)
    if not (path.endswith(".py") and file.is_file() and name):
        raise wrong_value("model", location, "path/module.py:function, an existing file")
    model = _call_function(file, name)
    if isinstance(model, LoadedModel):
        return model
    if not callable(model):
        expected = f"a function that returns a model, not {type(model).__name__}"
        raise wrong_value("model", location, expected)
    label = f"{file.stem}:{name}"
    if isinstance(model, nn.Module):
        model = load_options.load_weights(model)
        convolutions = (part for part in model.modules() if isinstance(part, nn.Conv2d))
        channels = next((layer.in_channels for layer in convolutions), None)
        transform = Preprocessing(channels if channels in (1, 3) else None)
        return loaded_model_from_module(
            model, label, "factory", transform, load_options, is_declared=False
        )
    is_declared = load_options.mean is not None
    transform = load_options.adapt_preprocessing(Preprocessing())
    if is_declared or transform.blue_first:
        model = wrap_function(model, before=transform.normalize)
    return LoadedModel(
        label, "factory", model, transform=transform, declares_preprocessing=is_declared
    )


def _call_function(file: Path, name: str) -> object:
    spec: Any = importlib.util.spec_from_file_location(f"teka_audited_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    folder = str(file.resolve().parent)
    sys.path.insert(0, folder)
    sys.modules[spec.name] = module  # dataclasses and pickle look the module up here
    try:
        with model_code_context():
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
    raise unknown_name_error(f"the function in {file}", name, known)
