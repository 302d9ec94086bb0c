"""Loading of finished runs and model files for an audit."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from teka import models
from teka.audit.adapters import LoadedModel, Loader, LoadOptions, Preprocessing
from teka.audit.adapters.loaded_model import wrap_module
from teka.data.load import class_names
from teka.errors import wrong_value
from teka.files import expand_user, read_json
from teka.models.model_file import PRETRAINED


def load_run(path: str, load_options: LoadOptions) -> LoadedModel:
    """Load the best model of a finished run.

    Args:
        path: Folder of the run.
        load_options: Options for the model, such as `data_dir` if the data set has moved.
    """
    from teka.training import restore  # needs Lightning

    trained = restore(expand_user(path), data_dir=load_options.data_dir)
    data = trained.dataset
    name = trained.name
    load_options = _keep_size(name, data.image_size, load_options)
    # A data set that was passed to `train` as an object has no class names.
    names = (
        class_names(trained.run.data, data_dir=trained.run.data_dir)
        if data.name == trained.run.data
        else None
    )
    known = {
        "class_names": names,
        "num_classes": data.num_classes,
        "loads_at_input_size": True,
        "trained_on": data.name,
    }
    transform = Preprocessing(data.in_channels)
    return wrap_module(trained.model, name, "teka run", transform, load_options, **known)


def load_model_file(path: str, load_options: LoadOptions) -> LoadedModel:
    """Load a model file from a folder, or a model that comes with teka by its name."""
    config = models.read_config(path)
    name = Path(path).name
    load_options = _keep_size(name, config.image_size, load_options)
    run = config.facts.get("run")
    known = {
        "class_names": config.class_names,
        "num_classes": config.num_classes,
        "loads_at_input_size": True,
        "trained_on": run.get("data") if isinstance(run, Mapping) else None,
    }
    transform = Preprocessing(config.in_channels)
    return wrap_module(models.load(path), name, "teka model file", transform, load_options, **known)


def _keep_size(name: str, size: tuple[int, ...], load_options: LoadOptions) -> LoadOptions:
    """Return the options with the image size of the model. Other sizes are an error."""
    if len(size) != 2:
        raise wrong_value("model", name, f"a model of images, not of {len(size)} axes")
    wanted = load_options.input_size
    if wanted not in (None, size) and (wanted, wanted) != size:
        raise wrong_value("input_size", wanted, f"{size}, the size that {name} was made for")
    return dataclasses.replace(load_options, input_size=size)


def _is_model_file(spec: str) -> bool:
    config = expand_user(spec) / "config.json"
    return spec in PRETRAINED or (config.is_file() and "format_version" in read_json(config))


_MODEL_FILE = (
    f"the folder of a model file, or a model that comes with teka ({', '.join(PRETRAINED)})"
)
# The name of a packaged model takes precedence over a folder of the same name.
LOCAL_LOADERS = (
    Loader(_MODEL_FILE, _is_model_file, load_model_file),
    Loader(
        "the folder of a teka run",
        lambda spec: (expand_user(spec) / "run.json").is_file(),
        load_run,
    ),
)
