"""Any model by a name or a path."""

import re
from pathlib import Path

import torch

from teka.audit.adapters.subject import Subject
from teka.errors import wrong_value
from teka.files import read_json
from teka.models import PRETRAINED

FORMS = (
    "the folder of a teka run or of a model file",
    f"a model that comes with teka ({', '.join(PRETRAINED)})",
    "a folder or hub id (owner/name, or transformers:ID) of transformers",
    "timm:NAME",
    "torchvision:NAME",
    "a file.onnx",
    "path/module.py:function",
)
_WEIGHTS = (".bin", ".pt", ".pth", ".pkl", ".ckpt", ".safetensors", ".h5", ".npz")


def load(
    spec: str,
    *,
    input_size: int | tuple[int, int] | None = None,
    num_classes: int | None = None,
    device: torch.device | str | None = None,
    data_dir: str | None = None,
) -> Subject:
    """The model that a name or a path stands for, ready to be audited.

    Nothing is unpickled. Only "path/module.py:function" runs code that is not of an installed library.

    Args:
        spec: One of `FORMS`. A path that exists is meant before anything else, except that the models that come with
            teka go before folders of their names: write ./mnist for those.
        input_size: Size of the model's images, one side or (height, width), for models that take any.
        num_classes: Number of classes that the model must have; None takes any.
        device: Where it runs; None is the CPU.
        data_dir: Folder with the data set's files of a teka run, if it has moved.

    Raises:
        ImportError: A library that is needed is not installed; the message says what to install.
        ValueError: No such model, one that cannot be read, or one of another size or number of classes.
    """
    _check_device(device)
    subject = _load(spec, input_size, device, data_dir)
    if num_classes is not None and subject.num_classes not in (None, num_classes):
        expected = f"a model of {num_classes} classes, as the data have; it has {subject.num_classes}"
        raise wrong_value("model", spec, expected)
    return subject


def _load(
    spec: str, input_size: int | tuple[int, int] | None, device: torch.device | str | None, data_dir: str | None
) -> Subject:
    # Each reader is imported when it is needed: together they need nearly every extra.
    prefix, _, rest = spec.partition(":")
    if prefix == "timm" and rest:
        from teka.audit.adapters.timm_model import load_timm

        return load_timm(rest, input_size=input_size, device=device)
    if prefix == "torchvision" and rest:
        from teka.audit.adapters.torchvision_model import load_torchvision

        return load_torchvision(rest, input_size=input_size, device=device)
    if re.search(r"\.py:[^/]*$", spec):
        from teka.audit.adapters.factory import load_factory

        return load_factory(spec, input_size=input_size, device=device)
    if spec.endswith(".onnx"):
        from teka.audit.adapters.onnx_model import load_onnx

        return load_onnx(spec, input_size=input_size, device=device)
    folder = Path(spec).expanduser()
    if spec in PRETRAINED or _is_model_file(folder):
        from teka.audit.adapters.teka_model import load_model_file

        return _of_size(load_model_file(spec, device=device), input_size)
    if (folder / "run.json").is_file():
        from teka.audit.adapters.teka_model import load_run

        return _of_size(load_run(folder, data_dir=data_dir, device=device), input_size)
    if prefix == "transformers" or (folder / "config.json").is_file() or _is_hub_id(spec):
        from teka.audit.adapters.transformers_model import load_transformers

        source = rest if prefix == "transformers" else str(folder) if folder.is_dir() else spec
        return load_transformers(source, input_size=input_size, device=device)
    if folder.suffix in _WEIGHTS:
        expected = "a model: a file of weights alone does not say what they are for; write path/module.py:function"
        raise wrong_value("model", spec, expected)
    raise wrong_value("model", spec, f"one of: {'; '.join(FORMS)}")


def _check_device(device: torch.device | str | None) -> None:
    if device is None:
        return
    if str(device).startswith("meta"):
        raise wrong_value("device", str(device), "a device that computes")
    try:
        torch.zeros(1, device=device)
    # What torch raises depends on why the device is not there.
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise wrong_value("device", str(device), f"a device that torch can use ({reason})") from error


def _is_model_file(folder: Path) -> bool:
    config = folder / "config.json"
    return config.is_file() and "format_version" in read_json(config)


def _is_hub_id(spec: str) -> bool:
    return not Path(spec).exists() and re.fullmatch(r"[\w.-]+/[\w.-]+", spec) is not None and not spec.startswith(".")


def _of_size(subject: Subject, input_size: int | tuple[int, int] | None) -> Subject:
    sizes = (None, subject.input_size)
    wanted = (input_size, input_size) if isinstance(input_size, int) else input_size
    if wanted not in sizes:
        raise wrong_value("input_size", input_size, f"{subject.input_size}, the size that {subject.name} was made for")
    return subject
