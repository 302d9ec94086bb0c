"""A finished run's model as a model file."""

import dataclasses
from pathlib import Path

from teka.codec import encode
from teka.data.load import class_names
from teka.files import read_json
from teka.models import ModelConfig, save
from teka.models.model_config import options_class
from teka.prediction.pictures import settings_for
from teka.training.evaluate import EVALUATION_FILE
from teka.training.restore import TrainedRun

TRAINING_FACTS = (
    "teka",
    "torch",
    "hardware",
    "date",
    "parameters",
    "epochs",
    "seconds",
    "train_images",
    "validation_images",
    "validation_accuracy",
)
EVALUATION_FACTS = ("dataset", "test_images", "accuracy", "interval")


def export(trained: TrainedRun, out: str | Path, *, dtype: str = "float32") -> Path:
    """Write a run's best weights as a model file, with what was trained, with what and how well.

    The facts are `run` (its fields, but for the data's folder on this machine), `training` (versions, hardware, date,
    size, validation accuracy) and, once `teka evaluate` has measured it, `evaluation` (accuracy on the test images).

    Args:
        trained: The run.
        out: The folder to write.
        dtype: How weights are stored: "float32", or "float16", which halves the file and rounds them.

    Returns:
        The folder.

    Raises:
        ImportError: safetensors is not installed.
        ValueError: A folder of something else at `out`, or weights that the dtype cannot hold.
    """
    run, dataset = trained.run, trained.dataset
    fields = run.to_dict()
    options = {one.name: fields[one.name] for one in dataclasses.fields(options_class(run.model)) if one.name in fields}
    if run.model == "self_attention":
        options["position"] = run.encoding
    if run.dropout is None:
        options.pop("dropout", None)
    data_dir = fields.pop("data_dir")
    # As in the file that it becomes, where JSON has lists only.
    facts: dict[str, object] = {"run": {name: _listed(value) for name, value in fields.items()}}
    facts["training"] = {name: trained.result[name] for name in TRAINING_FACTS if name in trained.result}
    if (trained.folder / EVALUATION_FILE).is_file():
        evaluation = read_json(trained.folder / EVALUATION_FILE)
        facts["evaluation"] = {name: evaluation[name] for name in EVALUATION_FACTS if name in evaluation}
    config = ModelConfig(
        run.model,
        dataset.image_size,
        dataset.in_channels,
        dataset.num_classes,
        options,
        class_names(run.data, data_dir=data_dir if isinstance(data_dir, str) else None),
        encode(settings_for(run.data, dataset.image_size)),
        facts,
    )
    return save(trained.model, out, config, dtype=dtype)


def _listed(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
