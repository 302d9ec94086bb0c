"""Saving and loading of models in folders with a JSON config and safetensors weights."""

import copy
import hashlib
import shlex
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from teka.checks import check_name, check_path
from teka.codec import decode, encode
from teka.errors import did_you_mean, require, wrong_argument, wrong_shape, wrong_value
from teka.files import (
    atomic_directory,
    check_folder_is_writable,
    expand_user,
    read_json,
    resolve_path,
    write_bytes,
    write_json,
)
from teka.models.model_config import ModelConfig, model_class

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
FORMAT_VERSION = 2
# Trained models that come with the library.
PRETRAINED = ("digits", "mnist", "fashion-mnist", "cifar10")
DTYPES = {"float32": torch.float32, "float16": torch.float16}
# Largest difference of logits that rounding in float32 explains, relative to the largest logit.
TOLERANCE = 1e-3
# Number of elements that a new model may have beyond twice the number in its weights file.
EXTRA_ELEMENTS = 100_000


def save(
    model: nn.Module, path: str | Path, config: ModelConfig, *, dtype: str = "float32"
) -> Path:
    """Save a model in a folder with a JSON config and safetensors weights, and return the folder.

    First, the function checks that a new model with this config and these weights gives the same
    logits. Then it writes the folder atomically.

    >>> import tempfile, teka
    >>> options = {"dim": 16, "depth": 2, "heads": 2, "patch_size": 4}
    >>> model = teka.models.Performer((8, 8), 1, 10, **options)
    >>> config = teka.models.ModelConfig("performer", (8, 8), 1, 10, options)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = teka.models.save(model, f"{folder}/mine", config)
    ...     sorted(file.name for file in path.iterdir())
    ['config.json', 'model.safetensors']

    Args:
        model: Model, which does not change.
        path: Folder to write. If it contains a saved model, this model is replaced.
        config: Options of the model, and facts about it.
        dtype: Dtype of the stored floating-point weights, "float32" or "float16". They are loaded
            in float32.

    Raises:
        ImportError: safetensors is not installed.
        ValueError: The folder contains other files, the config is that of another model, or the
            dtype cannot represent the weights.
    """
    folder = check_model_folder("path", path)
    check_same_logits(model, config)
    weights = serialize_weights(model, dtype)
    content = {
        "format_version": FORMAT_VERSION,
        **encode(config),
        "weights": {
            "sha256": hashlib.sha256(weights).hexdigest(),
            "bytes": len(weights),
            "dtype": dtype,
        },
    }
    with atomic_directory("path", folder) as new:
        write_bytes(new / WEIGHTS_FILE, weights)
        write_json(new / CONFIG_FILE, content)
    return folder


def load(path: str | Path) -> nn.Module:
    """Load a saved model, or a pretrained model of the library, for inference on the CPU.

    The model is in float32 and in evaluation mode. The state of PyTorch's random number generators
    does not change.

    >>> import torch, teka
    >>> model = teka.models.load("digits")
    >>> model(torch.zeros(2, 1, 16, 16)).shape
    torch.Size([2, 10])

    Args:
        path: Folder of a saved model, or the name of a model that comes with the library: "mnist",
            "fashion-mnist", "cifar10" or "digits". Write "./mnist" for a folder with such a name.

    Raises:
        ImportError: safetensors is not installed.
        ValueError: The config cannot be read, or the weights are missing, damaged or those of
            another model.
    """
    folder = _find_model_folder(path)
    config, description = _read_config_file(folder)
    weights_path = folder / WEIGHTS_FILE
    if not weights_path.is_file():
        raise wrong_value("the model", str(folder), f"a folder that holds {WEIGHTS_FILE}")
    content = weights_path.read_bytes()
    if len(content) != description["bytes"]:
        expected = f"{description['bytes']}, as in {CONFIG_FILE}"
        hint = "The weights file is incomplete, or belongs to the config of another model."
        raise wrong_value(f"the number of bytes of {weights_path}", len(content), expected, hint)
    if hashlib.sha256(content).hexdigest() != description["sha256"]:
        expected = f"the undamaged file whose SHA-256 is in {CONFIG_FILE}"
        raise wrong_value("weights", str(weights_path), expected)
    tensors = parse_safetensors(content, str(weights_path))
    # A model may register parameters twice while it is built. The exact comparison comes later.
    num_elements = sum(tensor.numel() for tensor in tensors.values())
    model = config.make_model(max_elements=2 * num_elements + EXTRA_ELEMENTS)
    load_tensors(model, tensors, str(weights_path))
    return model


def read_config(path: str | Path) -> ModelConfig:
    """Read the configuration of a saved model without loading its weights.

    >>> import teka
    >>> config = teka.models.read_config("digits")
    >>> config.image_size, config.options["heads"]
    ((16, 16), 2)

    Args:
        path: Folder or name, as in `load`.

    Raises:
        ValueError: The file is missing, or this version of teka cannot read it.
    """
    return _read_config_file(_find_model_folder(path))[0]


def _find_model_folder(path: str | Path) -> Path:
    if str(path) in PRETRAINED:
        return Path(str(files("teka.models") / "pretrained" / str(path)))
    folder = expand_user(check_path("the model", path))
    expected = f"one of {', '.join(PRETRAINED)}, or a folder that teka export has written"
    if not folder.is_dir():
        raise wrong_value("the model", str(path), expected, did_you_mean(path, PRETRAINED))
    if (folder / "run.json").is_file():
        hint = f"Export this run with teka export {shlex.quote(str(path))} --out FOLDER."
        raise wrong_value("the model", str(path), expected, hint)
    return folder


def _read_config_file(folder: Path) -> tuple[ModelConfig, dict[str, Any]]:
    """Read the config of a saved model, and the size and hash of its weights file."""
    config_path = folder / CONFIG_FILE
    content = read_json(config_path)
    try:
        version = content.pop("format_version", None)
        if version not in (1, FORMAT_VERSION):
            expected = f"1 or {FORMAT_VERSION}: another version of teka wrote this file"
            raise wrong_value("format_version", version, expected)
        options = content.get("options")
        if version == 1 and content.get("model") == "performer" and isinstance(options, dict):
            # In the first version of the format, the default stem was "patch".
            content["options"] = {"stem": "patch", **options}
        description: Any = content.pop("weights", None)
        match description:
            case {"sha256": str(), "bytes": int()}:
                return decode(ModelConfig, content, "config"), description
        raise wrong_value("weights", description, "a mapping with sha256 and bytes of the file")
    except ValueError as error:
        raise ValueError(f"{config_path} is not the config of a model: {error}") from error


def check_model_folder(argument: str, path: str | Path) -> Path:
    """Check that a model can be saved in a folder, and return the absolute path of the folder.

    The folder may be missing or empty. Otherwise, it must contain a saved model and nothing else.

    Args:
        argument: Name of the argument, for the error message.
        path: Path of the folder.
    """
    folder = resolve_path(argument, path)
    check_folder_is_writable(argument, folder.parent)
    if not folder.exists():
        return folder
    if not folder.is_dir():
        raise wrong_value(argument, str(path), "a folder, not a file")
    names = {entry.name for entry in folder.iterdir()}
    if names and names != {CONFIG_FILE, WEIGHTS_FILE}:
        expected = f"an empty folder or a saved model, without {', '.join(sorted(names)[:3])}"
        raise wrong_value(argument, str(path), expected)
    return folder


def serialize_weights(model: nn.Module, dtype: str) -> bytes:
    """Return the parameters and buffers of a model as the content of a safetensors file."""
    library = require("safetensors.torch", "model files need", "teka[train]")
    check_name("dtype", dtype, DTYPES)
    state = {}
    for name, tensor in model.state_dict().items():
        # safetensors refuses tensors that share memory, so copy each of them.
        copied = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        state[name] = copied.to(DTYPES[dtype]) if copied.is_floating_point() else copied
        if not torch.isfinite(state[name]).all():
            expected = f"finite values that {dtype} can represent"
            raise wrong_argument(f"{name} of the model", "not finite", expected)
    return library.save(state)


def parse_safetensors(content: bytes, source: str) -> dict[str, Tensor]:
    """Read the tensors from the content of a safetensors file.

    `source` is the name of the file in error messages.
    """
    library = require("safetensors.torch", "model files need", "teka[train]")
    from safetensors import SafetensorError

    try:
        return library.load(content)
    # A KeyError means that PyTorch does not have a dtype of the file.
    except (SafetensorError, KeyError) as error:
        raise wrong_value("weights", source, f"a whole safetensors file ({error})") from error


def load_tensors(model: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Copy tensors into the parameters and buffers of a model.

    Args:
        model: Model, which keeps its dtypes.
        tensors: Tensors by name.
        source: Name of the file in an error message.

    Raises:
        ValueError: A name, shape or dtype differs from that of the model, or a value is not finite.
    """
    state = model.state_dict()
    for name in sorted(state.keys() | tensors.keys()):
        if name not in tensors:
            raise wrong_value("weights", source, "a file for this model", f"{name} is missing.")
        if name not in state:
            raise wrong_value("weights", source, "a file for this model", f"{name} is unknown.")
        tensor, expected = tensors[name], state[name]
        argument = f"{name} of {source}"
        if tensor.shape != expected.shape:
            shape = f"{tuple(expected.shape)}, as in this model"
            raise wrong_shape(argument, tensor.shape, shape)
        are_floating = tensor.is_floating_point() and expected.is_floating_point()
        if tensor.dtype != expected.dtype and not are_floating:
            dtype = f"{expected.dtype}, as in this model"
            raise wrong_value(argument, str(tensor.dtype), dtype)
        if not torch.isfinite(tensor).all():
            raise wrong_argument(argument, "not finite", "finite values")
    model.load_state_dict(dict(tensors))


def check_same_logits(model: nn.Module, config: ModelConfig) -> None:
    """Check that a model can be rebuilt from its config, before both are saved together.

    A new model that is built from the config and has the same weights must give the same logits.
    """
    kind = model_class(config.model)
    if type(model) is not kind:
        expected = f"{config.model!r}, a {kind.__name__}, as in the config"
        raise wrong_value("model", type(model).__name__, expected)
    original = copy.deepcopy(model).to("cpu", torch.float32).eval()
    rebuilt = config.make_model()
    load_tensors(rebuilt, original.state_dict(), "the model to save")
    shape = (2, config.in_channels, *config.image_size)
    images = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    with torch.inference_mode():
        expected_logits, logits = original(images), rebuilt(images)
    difference = (logits - expected_logits).abs().max()
    # NaN fails this comparison too.
    if not difference <= TOLERANCE * expected_logits.abs().max():
        hint = "A model built from these options with the same weights gives different logits."
        raise wrong_value("options", dict(config.options), "the options of the model", hint)
