"""A finished run: read back from its folder, evaluated on its test images, and exported as a model file."""

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torchmetrics.classification import MulticlassConfusionMatrix

from teka.audit import wilson_interval
from teka.checks import check_sizes
from teka.codec import encode
from teka.data import Dataset
from teka.data.load import class_names
from teka.errors import wrong_value
from teka.files import check_output_file, read_json, resolve_path, write_json
from teka.models import ModelConfig, save
from teka.prediction.pictures import settings_for
from teka.provenance import provenance
from teka.training.batches import batches
from teka.training.checkpoint import BEST, CHECKPOINTS, check_run, load_weights
from teka.training.run import Run
from teka.training.train import RESULT_FILE, load_data, read_result

EVALUATION_FILE = "evaluation.json"
TRAINING_FACTS = (
    "teka", "torch", "hardware", "date", "parameters", "epochs", "seconds", "train_images", "validation_images",
    "validation_accuracy",
)  # fmt: skip
EVALUATION_FACTS = ("dataset", "test_images", "accuracy", "interval")


@dataclass(frozen=True)
class TrainedRun:
    """A run: its folder, its best model in evaluation mode, its data, and what `result.json` holds.

    >>> import teka.data
    >>> from pathlib import Path
    >>> from teka.training import Run, TrainedRun
    >>> run, digits = Run.of(dim=8, heads=2), teka.data.load("digits")
    >>> model = run.make_model(**digits.sizes).eval()
    >>> trained = TrainedRun(Path("runs/digits"), run, model, digits, {"validation_accuracy": 0.1})
    >>> trained.name, trained.model(digits.test.images[:2]).shape
    ('rotary, squared_relu', torch.Size([2, 10]))
    """

    folder: Path
    run: Run
    model: nn.Module
    dataset: Dataset
    result: dict[str, Any]

    @property
    def name(self) -> str:
        """What to call the model in tables."""
        return model_name(self.run)


def model_name(run: Run) -> str:
    """What to call a run's model: a Performer by its position, its content kernel, and what samples its pixels."""
    if run.model != "performer":
        return run.model
    return ", ".join(part for part in (run.position, run.kernel, run.network.sampling) if part)


def restore(
    folder: str | Path, *, data_dir: str | None = None, dataset: Dataset | None = None
) -> TrainedRun:
    """Read a finished run back from its folder.

    Args:
        folder: The run's folder.
        data_dir: Folder with the data set's files, if they have moved.
        dataset: The data set that `train` was given, where it was given one.

    Raises:
        ValueError: Not a run's folder, not trained to its end, a checkpoint of another architecture, or other data.
    """
    folder = Path(folder)
    run = Run.load(folder)
    if not (folder / RESULT_FILE).is_file():
        raise wrong_value("run", str(folder), "a finished run; resume it with teka train --resume")
    result = read_result(folder)
    check_run(folder / CHECKPOINTS / BEST, run)
    run = run if data_dir is None else run.replace(data_dir=data_dir)
    dataset = load_data(run) if dataset is None else dataset
    if dataset.name != (trained_on := result.get("data", run.data)):
        raise wrong_value("dataset", dataset.name, f"{trained_on!r}, on which the run was trained")
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # what is to be said of the model was said when it was trained
        model = run.make_model(**dataset.sizes)
    load_weights(model, folder / CHECKPOINTS / BEST)
    model.eval()
    return TrainedRun(folder, run, model, dataset, result)


@dataclass(frozen=True)
class Evaluation:
    """Accuracy of a run on its test images, with its 95 % Wilson interval, and the confusion of classes."""

    dataset: str
    test_images: int
    accuracy: float
    interval: tuple[float, float]
    accuracy_by_class: list[float]
    confusion: list[list[int]]  # images of each class (row) answered as each class (column)


def evaluate(
    trained: TrainedRun,
    *,
    batch_size: int = 256,
    command: str = "",
    progress: Callable[[int, int], object] | None = None,
) -> Evaluation:
    """Measure a run on every test image, so many at a time, and write `evaluation.json` into its folder.

    After each batch `progress` is called with the number of images so far and of all.

    Raises:
        ValueError: A batch size below 1, or a folder that cannot be written to.
    """
    check_sizes({"batch_size": batch_size})
    check_output_file("run", trained.folder / EVALUATION_FILE)
    matrix = confusion_matrix(trained.model, trained.dataset, batch_size, progress)
    num_images, right = len(trained.dataset.test), int(matrix.diagonal().sum())
    low, high = wilson_interval(right, num_images)
    evaluation = Evaluation(
        dataset=trained.dataset.name,
        test_images=num_images,
        accuracy=right / num_images,
        interval=(float(low), float(high)),
        accuracy_by_class=(matrix.diagonal() / matrix.sum(dim=1).clamp(min=1)).tolist(),
        confusion=matrix.tolist(),
    )
    write_json(trained.folder / EVALUATION_FILE, {**provenance(command), **asdict(evaluation)})
    return evaluation


def confusion_matrix(
    model: nn.Module,
    dataset: Dataset,
    batch_size: int = 256,
    progress: Callable[[int, int], object] | None = None,
) -> Int[Tensor, "classes classes"]:
    """Number of test images of each class (row) answered as each class (column)."""
    confusion, done = MulticlassConfusionMatrix(dataset.num_classes), 0
    with torch.inference_mode():
        for images, labels in batches(dataset.test, batch_size=batch_size):
            confusion.update(model(images), labels)
            done += len(labels)
            if progress is not None:
                progress(done, len(dataset.test))
    return confusion.compute()


def export(trained: TrainedRun, out: str | Path, *, dtype: str = "float32") -> Path:
    """Write a run's best weights as a model file, with what was trained, with what and how well.

    The facts are `run` (its fields, but for the data's folder on this machine), `training` (versions, hardware, date,
    size, validation accuracy) and, once `teka evaluate` has measured it, `evaluation` (accuracy on the test images).

    Args:
        trained: The run.
        out: The folder to write, which is given back.
        dtype: How weights are stored: "float32", or "float16", which halves the file and rounds them.

    Raises:
        ImportError: safetensors is not installed.
        ValueError: A folder of something else at `out`, or weights that the dtype cannot hold.
    """
    run, dataset = trained.run, trained.dataset
    facts: dict[str, Any] = {"run": encode(run.to_dict())}
    del facts["run"]["data_dir"]
    facts["training"] = {
        name: trained.result[name] for name in TRAINING_FACTS if name in trained.result
    }
    if (trained.folder / EVALUATION_FILE).is_file():
        evaluation = read_json(trained.folder / EVALUATION_FILE)
        facts["evaluation"] = {
            name: evaluation[name] for name in EVALUATION_FACTS if name in evaluation
        }
    names = class_names(run.data, data_dir=run.data_dir) if dataset.name == run.data else None
    pictures = encode(settings_for(run.data, dataset.image_size))
    described = {
        "options": run.network.keywords(),
        "class_names": names,
        "pictures": pictures,
        "facts": facts,
    }
    config = ModelConfig(run.model, **dataset.sizes, **described)
    return save(trained.model, resolve_path("out", out), config, dtype=dtype)
