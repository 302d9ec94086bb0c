"""Loading of models that teka trained, from runs and model files, for an audit."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from teka import models
from teka.audit.adapters import LoadedModel, Loader, LoadOptions, Preprocessing
from teka.audit.adapters.loaded_model import loaded_model_from_module
from teka.errors import wrong_value
from teka.files import expand_user, read_json
from teka.models.model_file import PRETRAINED


def load_model_of_run(path: str, load_options: LoadOptions) -> LoadedModel:
    """Load the model to audit from the best checkpoint of a finished training run.

    Args:
        path: Folder of the run.
        load_options: Loading options, such as `data_dir` if the data set has moved.
    """
    from teka.training import restore  # needs Lightning

    trained = restore(expand_user(path), data_dir=load_options.data_dir)
    return _wrap_teka_model(
        trained.model,
        trained.name,
        "teka run",
        load_options,
        **trained.dataset.sizes,
        class_names=trained.dataset.class_names,
        trained_on=trained.dataset.name,
    )


def load_model_file(path: str, load_options: LoadOptions) -> LoadedModel:
    """Load the model to audit from a model file of `teka export`, or load a packaged model.

    Args:
        path: The folder, or the name of the packaged model, such as "digits".
        load_options: Loading options, such as the device.
    """
    config = models.read_config(path)
    run = config.facts.get("run")
    return _wrap_teka_model(
        models.load(path),
        Path(path).name,
        "teka model file",
        load_options,
        **config.sizes,
        class_names=config.class_names,
        trained_on=run.get("data") if isinstance(run, Mapping) else None,
    )


def _wrap_teka_model(
    model: nn.Module,
    name: str,
    kind: str,
    load_options: LoadOptions,
    *,
    image_size: tuple[int, ...],
    in_channels: int,
    **known: Any,
) -> LoadedModel:
    """Wrap a model that teka trained as a `LoadedModel` with the input size of its training.

    Raises:
        ValueError: The model does not classify images, or `input_size` differs from its own size.
    """
    if len(image_size) != 2:
        raise wrong_value("model", name, f"a model of images, not of {len(image_size)} axes")
    wanted = load_options.input_size
    if wanted not in (None, image_size) and (wanted, wanted) != image_size:
        raise wrong_value("input_size", wanted, f"{image_size}, the size that {name} was made for")
    load_options = replace(load_options, input_size=image_size)
    return loaded_model_from_module(
        model,
        name,
        kind,
        Preprocessing(in_channels),
        load_options,
        loads_at_input_size=True,
        **known,
    )


def _is_model_file(spec: str) -> bool:
    config = expand_user(spec) / "config.json"
    return spec in PRETRAINED or (config.is_file() and "format_version" in read_json(config))


# The name of a packaged model takes precedence over a folder of the same name.
LOCAL_LOADERS = (
    Loader(
        f"the folder of a model file, or a packaged model ({', '.join(PRETRAINED)})",
        _is_model_file,
        load_model_file,
    ),
    Loader(
        "the folder of a teka run",
        lambda spec: (expand_user(spec) / "run.json").is_file(),
        load_model_of_run,
    ),
)
