"""Models of this library: folders of finished runs, model files, and the trained ones that come with it."""

from pathlib import Path

import torch

from teka.audit.adapters.preprocessing import Preprocessing
from teka.audit.adapters.subject import Subject, subject_of_module
from teka.models import load, read_config

RUN_KIND = "teka run"
FILE_KIND = "teka model file"
TEKA_KINDS = (RUN_KIND, FILE_KIND)


def load_run(folder: str | Path, *, data_dir: str | None = None, device: torch.device | str | None = None) -> Subject:
    """The best model of a finished run.

    Args:
        folder: The run's folder.
        data_dir: Folder with its data set's files, if it has moved: the data say how large the model is.
        device: Where it runs; None is the CPU.

    Raises:
        ImportError: lightning is not installed.
        ValueError: Not the folder of a finished run.
    """
    try:
        from teka.training import restore
    except ImportError as error:
        raise ImportError(f"runs need {error.name}, which is not installed: pip install teka[train]") from error
    trained = restore(folder, data_dir=data_dir)
    size = trained.dataset.image_size
    return subject_of_module(
        trained.model,
        name=trained.name,
        kind=RUN_KIND,
        transform=Preprocessing(trained.dataset.in_channels, size),
        input_size=size,
        device=device,
        num_classes=trained.dataset.num_classes,
    )


def load_model_file(path: str | Path, *, device: torch.device | str | None = None) -> Subject:
    """The model of a model file, or of the name of one that comes with the library.

    Args:
        path: The folder, or the name.
        device: Where it runs; None is the CPU.

    Raises:
        ImportError: safetensors is not installed.
        ValueError: No model file, or a damaged one.
    """
    config = read_config(path)
    return subject_of_module(
        load(path),
        name=Path(path).name,
        kind=FILE_KIND,
        transform=Preprocessing(config.in_channels, config.image_size),
        input_size=config.image_size,
        device=device,
        class_names=config.class_names,
        num_classes=config.num_classes,
    )
