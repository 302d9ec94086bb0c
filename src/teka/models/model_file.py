"""Model files: a folder with a JSON config and the weights as safetensors."""

import hashlib
import shutil
import tempfile
from importlib.resources import files
from pathlib import Path

from torch import nn

from teka.errors import wrong_value
from teka.files import make_directory, read_json, write_bytes, write_json
from teka.models.model_config import ModelConfig
from teka.models.weights import check_same_logits, load_tensors, pack, unpack

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
FORMAT_VERSION = 1
# Trained models that come with the library.
PRETRAINED = ("digits", "mnist")
MORE = 100_000  # numbers that a model may have beyond twice those of its file, before it is said to be another


def save(model: nn.Module, path: str | Path, config: ModelConfig, *, dtype: str = "float32") -> Path:
    """Write a model into a folder, whole or not at all; a model file that stood there is replaced.

    A model does not know what it was made with. So the config's model is built, given the weights, and must give the
    same logits: an option that was forgotten is an error here, not a wrong answer later.

    Args:
        model: The model; it stays as it is.
        path: The folder.
        config: What the model was made with, and facts about it.
        dtype: How floating point weights are stored, "float32" or "float16"; they are loaded as float32.

    Returns:
        The folder.

    Raises:
        ImportError: safetensors is not installed.
        ValueError: A file or a folder of something else at `path`; a config that is not this model's; or weights that
            are not finite, or too large for float16.
    """
    folder = Path(path).expanduser().resolve()
    _check_place(folder)
    check_same_logits(model, config)
    weights = pack(model, dtype)
    described = {"sha256": hashlib.sha256(weights).hexdigest(), "bytes": len(weights), "dtype": dtype}
    content = {"format_version": FORMAT_VERSION, **config.to_dict(), "weights": described}
    parent = make_directory("path", folder.parent)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=parent))
    try:
        new = temporary / "new"
        new.mkdir()
        write_bytes(new / WEIGHTS_FILE, weights)
        write_json(new / CONFIG_FILE, content)
        _put(new, folder, temporary / "old")
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def load(path: str | Path) -> nn.Module:
    """The model of a model file, on the CPU in float32, in evaluation mode; torch's random state stays as it was.

    Args:
        path: The folder, or the name of a model that comes with the library, "digits" or "mnist"; a folder of such a
            name is meant by `./mnist`.

    Raises:
        ImportError: safetensors is not installed.
        ValueError: What `read_config` raises, weights that are missing, cut off, damaged or another config's, or
            tensors of other names or shapes than the model's.
    """
    folder = _find(path)
    config, described = _read(folder)
    place = folder / WEIGHTS_FILE
    if not place.is_file():
        raise wrong_value("path", str(folder), f"a folder that holds {WEIGHTS_FILE}")
    content = place.read_bytes()
    if len(content) != described["bytes"]:
        expected = f"{described['bytes']}, as {CONFIG_FILE} says: the file is cut off or of another config"
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
    """What a model file says of its model; the weights are not looked at.

    Args:
        path: The folder, or a name, as for `load`.

    Raises:
        ValueError: No such folder, or a config that is missing, not JSON, of another version of the format, or has an
            unknown key, model or option or a value that these do not take; the message names the file.
    """
    return _read(_find(path))[0]


def _find(path: str | Path) -> Path:
    if str(path) in PRETRAINED:
        return Path(str(files("teka.models") / "pretrained" / str(path)))
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise wrong_value("path", str(path), f"the folder of a model file, or one of {', '.join(PRETRAINED)}")
    return folder


def _read(folder: Path) -> tuple[ModelConfig, dict[str, object]]:
    """The config and what it says of the weights."""
    place = folder / CONFIG_FILE
    content = read_json(place)
    try:
        version = content.pop("format_version", None)
        if version != FORMAT_VERSION:
            raise wrong_value("format_version", version, f"{FORMAT_VERSION}: another is of another version of teka")
        described = content.pop("weights", None)
        if not (
            isinstance(described, dict)
            and isinstance(described.get("sha256"), str)
            and isinstance(described.get("bytes"), int)
        ):
            raise wrong_value("weights", described, "a mapping with sha256 and bytes of the file")
        return ModelConfig.from_dict(content), described
    except ValueError as error:
        raise ValueError(f"{place} is no config of a model: {error}") from error


def _check_place(folder: Path) -> None:
    """Check that nothing but a model file can be replaced."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise wrong_value("path", str(folder), "a folder, or a place where one can be made; it is a file")
    found = sorted(entry.name for entry in folder.iterdir())
    if found and found != sorted((CONFIG_FILE, WEIGHTS_FILE)):
        raise wrong_value("path", str(folder), f"an empty place or a model file; it holds {', '.join(found[:3])}")


def _put(new: Path, folder: Path, old: Path) -> None:
    """Rename a folder into its place; what stood there moves away first, and back if that fails."""
    if not folder.exists():
        new.rename(folder)
        return
    folder.rename(old)
    try:
        new.rename(folder)
    except BaseException:
        old.rename(folder)
        raise
