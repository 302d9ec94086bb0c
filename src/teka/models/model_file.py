"""Model files: a folder with a JSON config and the weights as safetensors."""

import copy
import hashlib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from teka.checks import check_name
from teka.codec import decode, encode
from teka.errors import require, wrong_argument, wrong_shape, wrong_value
from teka.files import (
    atomic_directory,
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
PRETRAINED = (
    "digits",
    "mnist",
    "fashion-mnist",
    "cifar10",
)  # trained models that come with the library
DTYPES = {"float32": torch.float32, "float16": torch.float16}
TOLERANCE = 1e-3  # largest difference of logits over the largest logit: what rounding in float32 may make of them
MORE = 100_000  # numbers that a model may have beyond twice those of its file, before it is said to be another


def save(
    model: nn.Module, path: str | Path, config: ModelConfig, *, dtype: str = "float32"
) -> Path:
    """Write a model into a folder, whole or not at all, and give that back; a model file that stood there is replaced.

    A model does not know what it was made with. So the config's model is built, given the weights, and must give the
    same logits: an option that was forgotten is an error here, not a wrong answer later.

    Args:
        model: The model; it stays as it is.
        path: The folder.
        config: What the model was made with, and facts about it.
        dtype: How floating point weights are stored, "float32" or "float16"; they are loaded as float32.

    Raises:
        ImportError: safetensors is not installed.
        ValueError: Something else at `path`, another model's config, or weights that the dtype cannot hold.
    """
    folder = resolve_path("path", path)
    _check_place(folder)
    check_same_logits(model, config)
    weights = pack(model, dtype)
    described = {
        "sha256": hashlib.sha256(weights).hexdigest(),
        "bytes": len(weights),
        "dtype": dtype,
    }
    content = {"format_version": FORMAT_VERSION, **encode(config), "weights": described}
    with atomic_directory("path", folder, replace=True) as new:
        write_bytes(new / WEIGHTS_FILE, weights)
        write_json(new / CONFIG_FILE, content)
    return folder


def load(path: str | Path) -> nn.Module:
    """The model of a model file, on the CPU in float32, in evaluation mode; torch's random state stays as it was.

    Args:
        path: The folder, or a model that comes with the library, "mnist", "fashion-mnist", "cifar10" or "digits"; a
            folder of such a name is meant by `./mnist`.

    Raises:
        ImportError: safetensors is not installed.
        ValueError: What `read_config` raises, or weights that are missing, damaged or another model's.
    """
    folder = _find(path)
    config, described = _read(folder)
    place = folder / WEIGHTS_FILE
    if not place.is_file():
        raise wrong_value("path", str(folder), f"a folder that holds {WEIGHTS_FILE}")
    content = place.read_bytes()
    if len(content) != described["bytes"]:
        expected = (
            f"{described['bytes']}, as {CONFIG_FILE} says: the file is cut off or of another config"
        )
        raise wrong_value(f"the number of bytes of {place}", len(content), expected)
    if hashlib.sha256(content).hexdigest() != described["sha256"]:
        expected = f"the file whose SHA-256 {CONFIG_FILE} keeps: it is damaged or of another config"
        raise wrong_value("weights", str(place), expected)
    tensors = unpack(content, str(place))
    # Some are registered more than once while the model is made; the exact comparison comes after.
    model = config.make_model(most=2 * sum(tensor.numel() for tensor in tensors.values()) + MORE)
    load_tensors(model, tensors, str(place))
    return model


def read_config(path: str | Path) -> ModelConfig:
    """What a model file, a folder or a name as for `load`, says of its model; the weights are not looked at.

    A ValueError for one that is missing, or that this version of teka does not understand, names the file.
    """
    return _read(_find(path))[0]


def _find(path: str | Path) -> Path:
    if str(path) in PRETRAINED:
        return Path(str(files("teka.models") / "pretrained" / str(path)))
    folder = expand_user(path)
    if not folder.is_dir():
        raise wrong_value(
            "path", str(path), f"the folder of a model file, or one of {', '.join(PRETRAINED)}"
        )
    return folder


def _read(folder: Path) -> tuple[ModelConfig, dict[str, object]]:
    """The config and what it says of the weights."""
    place = folder / CONFIG_FILE
    content = read_json(place)
    try:
        version = content.pop("format_version", None)
        if version not in (1, FORMAT_VERSION):
            expected = f"1 or {FORMAT_VERSION}: another is of another version of teka"
            raise wrong_value("format_version", version, expected)
        options = content.get("options")
        if version == 1 and content.get("model") == "performer" and isinstance(options, dict):
            content["options"] = {"stem": "patch", **options}  # the default of then
        described: Any = content.pop("weights", None)
        match described:
            case {"sha256": str(), "bytes": int()}:
                return decode(ModelConfig, content, "config"), described
        raise wrong_value("weights", described, "a mapping with sha256 and bytes of the file")
    except ValueError as error:
        raise ValueError(f"{place} is no config of a model: {error}") from error


def _check_place(folder: Path) -> None:
    """Check that nothing but a model file can be replaced."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise wrong_value(
            "path", str(folder), "a folder, or a place where one can be made; it is a file"
        )
    found = sorted(entry.name for entry in folder.iterdir())
    if found and found != sorted((CONFIG_FILE, WEIGHTS_FILE)):
        raise wrong_value(
            "path", str(folder), f"an empty place or a model file; it holds {', '.join(found[:3])}"
        )


def pack(model: nn.Module, dtype: str) -> bytes:
    """All parameters and buffers of a model's state_dict, as safetensors."""
    library = require("safetensors.torch", "model files need", "teka[train]")
    check_name("dtype", dtype, DTYPES)
    state = {}
    for name, tensor in model.state_dict().items():
        # A copy, as safetensors refuses parameters that layers share: each has its own in the file.
        kept = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        state[name] = kept.to(DTYPES[dtype]) if kept.is_floating_point() else kept
        if not torch.isfinite(state[name]).all():
            raise wrong_argument(
                f"{name} of the model", "not finite", f"finite numbers that {dtype} can hold"
            )
    return library.save(state)


def unpack(content: bytes, source: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    library = require("safetensors.torch", "model files need", "teka[train]")
    from safetensors import SafetensorError

    try:
        return library.load(content)
    except (
        SafetensorError,
        KeyError,
    ) as error:  # KeyError: a type of numbers that torch does not have
        raise wrong_value("weights", source, f"a whole safetensors file ({error})") from error


def load_tensors(model: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Put tensors into a model; they become numbers of its own type."""
    wanted = model.state_dict()
    for name in sorted(wanted.keys() | tensors.keys()):
        if name not in tensors:
            raise wrong_value("weights", source, f"the config's model; {name} is missing")
        if name not in wanted:
            raise wrong_value("weights", source, f"the config's model; it has no {name}")
        came, expected, place = tensors[name], wanted[name], f"{name} of {source}"
        if came.shape != expected.shape:
            raise wrong_shape(
                place, came.shape, f"{tuple(expected.shape)}, as the config's model has it"
            )
        if came.dtype != expected.dtype and not (
            came.is_floating_point() and expected.is_floating_point()
        ):
            raise wrong_value(
                place, str(came.dtype), f"{expected.dtype}, as the config's model has it"
            )
        if not torch.isfinite(came).all():
            raise wrong_argument(place, "not finite", "finite numbers")
    model.load_state_dict(dict(tensors))


def check_same_logits(model: nn.Module, config: ModelConfig) -> None:
    """Check that a config's model, given a model's weights, is the same function of images."""
    kind = model_class(config.model)
    if type(model) is not kind:
        expected = f"{config.model!r}, a {kind.__name__}, as the config says"
        raise wrong_value("model", type(model).__name__, expected)
    given = copy.deepcopy(model).to("cpu", torch.float32).eval()
    rebuilt = config.make_model()
    load_tensors(rebuilt, given.state_dict(), "the given model")
    shape = (2, config.in_channels, *config.image_size)
    images = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    with torch.inference_mode():
        expected, found = given(images), rebuilt(images)
    if not (found - expected).abs().max() <= TOLERANCE * expected.abs().max():
        expected = (
            "what the model was made with: its logits are not those of a model with these options"
        )
        raise wrong_value("options", dict(config.options), expected)
