"""Models of this library for an audit: folders of finished runs, model files, and the trained ones that come along."""

from pathlib import Path

import torch

from teka.audit.adapters import Loader, Preprocessing, Subject
from teka.audit.adapters.subject import Size, subject_of_module
from teka.errors import wrong_value
from teka.files import read_json
from teka.models import load, read_config
from teka.models.model_file import PRETRAINED


def load_run(path: str, input_size: Size, device: torch.device | str | None, data_dir: str | None) -> Subject:
    """The best model of a finished run; its data, which may have moved to `data_dir`, say how large it is."""
    try:
        from teka.training import restore
    except ImportError as error:
        raise ImportError(f"runs need {error.name}, which is not installed: pip install teka[train]") from error
    trained = restore(Path(path).expanduser(), data_dir=data_dir)
    data, name = trained.dataset, trained.name
    size = _checked_size(name, data.image_size, input_size)
    transform, classes = Preprocessing(data.in_channels, size), data.num_classes
    return subject_of_module(
        trained.model, name, "teka run", transform, size, device, num_classes=classes, loads_at_input_size=True
    )


def load_model_file(path: str, input_size: Size, device: torch.device | str | None, _data_dir: str | None) -> Subject:
    """The model of a model file's folder, or of the name of one that comes with the library."""
    config = read_config(path)
    size = _checked_size(Path(path).name, config.image_size, input_size)
    return subject_of_module(
        load(path),
        Path(path).name,
        "teka model file",
        Preprocessing(config.in_channels, size),
        size,
        device,
        class_names=config.class_names,
        num_classes=config.num_classes,
        loads_at_input_size=True,
    )


def _checked_size(name: str, size: tuple[int, int], wanted: Size) -> tuple[int, int]:
    if wanted not in (None, size) and (wanted, wanted) != size:
        raise wrong_value("input_size", wanted, f"{size}, the size that {name} was made for")
    return size


def _is_model_file(spec: str) -> bool:
    config = Path(spec).expanduser() / "config.json"
    return spec in PRETRAINED or (config.is_file() and "format_version" in read_json(config))


# The models that come with the library go before folders of their names.
OWN_LOADERS = (
    Loader(
        f"the folder of a model file, or a model that comes with teka ({', '.join(PRETRAINED)})",
        _is_model_file,
        load_model_file,
    ),
    Loader("the folder of a teka run", lambda spec: (Path(spec).expanduser() / "run.json").is_file(), load_run),
)
