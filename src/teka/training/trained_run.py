"""Finished training runs: restoring, evaluating and exporting them."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torchmetrics.classification import MulticlassConfusionMatrix

from teka.audit import wilson_interval
from teka.checks import check_sizes
from teka.codec import encode
from teka.data import Dataset
from teka.errors import wrong_value
from teka.files import make_directory, read_json, write_json
from teka.models import ModelConfig, save
from teka.models.model_file import check_model_folder
from teka.prediction import choose_picture_settings
from teka.provenance import gather_provenance
from teka.training.batches import make_evaluation_loader
from teka.training.checkpoint import BEST, CHECKPOINTS, load_weights, verify_checkpoint
from teka.training.run import EVALUATION_FILE, RESULT_FILE, Run
from teka.training.trainer import load_data, read_training_result

# Fields of `evaluation.json` that are copied to an exported model file.
EVALUATION_FACTS = ("dataset", "test_images", "accuracy", "interval")


@dataclass(frozen=True)
class TrainedRun:
    """A finished training run, with the model of its best epoch.

    >>> import teka.data
    >>> from pathlib import Path
    >>> from teka.training import Run, TrainedRun
    >>> run, digits = Run.from_fields(dim=8, heads=2), teka.data.load("digits")
    >>> model = run.make_model(**digits.sizes).eval()
    >>> trained = TrainedRun(Path("runs/digits"), run, model, digits, {"validation_accuracy": 0.1})
    >>> trained.name, trained.model(digits.test.images[:2]).shape
    ('rotary, squared_relu', torch.Size([2, 10]))

    Attributes:
        folder: Folder of the run.
        run: Configuration.
        model: Model of the best epoch in evaluation mode.
        dataset: Data set.
        result: Content of `result.json`.
    """

    folder: Path
    run: Run
    model: nn.Module
    dataset: Dataset
    result: dict[str, Any]

    @property
    def name(self) -> str:
        """Short description of the model for tables, such as "rotary, squared_relu"."""
        return self.run.model_name


def restore(
    folder: str | Path, *, data_dir: str | None = None, dataset: Dataset | None = None
) -> TrainedRun:
    """Load a finished run from its folder, with its configuration, model and data set.

    >>> from teka.training import restore
    >>> trained = restore("runs/digits")  # doctest: +SKIP
    >>> logits = trained.model(trained.dataset.test.images)  # doctest: +SKIP

    Args:
        folder: Folder of the run.
        data_dir: Folder with the files of the data set, if it has moved.
        dataset: Data set that was passed to `train`, if it was not loaded by name.

    Raises:
        ValueError: The folder contains no finished run, the checkpoint belongs to another run, or
            the data set has a different name.
    """
    folder = Path(folder)
    run = Run.load(folder)
    if not (folder / RESULT_FILE).is_file():
        raise wrong_value(
            "run", str(folder), "a finished run", "Resume it with teka train --resume."
        )
    result = read_training_result(folder)
    verify_checkpoint(folder / CHECKPOINTS / BEST, run)
    run = run if data_dir is None else run.replace(data_dir=data_dir)
    dataset = dataset or load_data(run)
    if dataset.name != (name := result.get("data", run.images.data)):
        raise wrong_value("dataset", dataset.name, f"{name!r}, on which the run was trained")
    model = ModelConfig(
        run.network.model, **dataset.sizes, options=run.network.options
    ).make_model()
    load_weights(model, folder / CHECKPOINTS / BEST)
    return TrainedRun(folder, run, model, dataset, result)


@dataclass(frozen=True)
class Evaluation:
    """Accuracy of a trained model on its test images.

    Attributes:
        dataset: Name of the data set.
        test_images: Number of test images.
        accuracy: Accuracy on the test images.
        interval: 95 % Wilson interval of the accuracy.
        accuracy_by_class: Accuracy for each class, or None for a class without images.
        confusion: Confusion matrix. Entry (i, j) counts the images of class i that are predicted as
            class j.
    """

    dataset: str
    test_images: int
    accuracy: float
    interval: tuple[float, float]
    accuracy_by_class: list[float | None]
    confusion: list[list[int]]


def evaluate(
    trained: TrainedRun,
    *,
    batch_size: int = 256,
    command: str = "",
    progress: Callable[[int, int], object] | None = None,
) -> Evaluation:
    """Measure the accuracy of a trained model on its test images.

    The evaluation is also saved as `evaluation.json` in the folder of the run.

    >>> from teka.training import evaluate, restore
    >>> evaluation = evaluate(restore("runs/digits"))  # doctest: +SKIP
    >>> evaluation.accuracy, evaluation.interval  # doctest: +SKIP

    Args:
        trained: Finished run to evaluate.
        batch_size: Number of images per batch.
        command: Command line to save in the file.
        progress: Function that is called after each batch with the number of evaluated images and
            the number of all images.

    Raises:
        ValueError: `batch_size` is below 1, or the folder is not writable.
    """
    check_sizes({"batch_size": batch_size})
    folder = make_directory("run", trained.folder)
    dataset = trained.dataset
    metric = MulticlassConfusionMatrix(dataset.num_classes)
    num_images = 0
    with torch.inference_mode():
        for images, labels in make_evaluation_loader(dataset.test, batch_size=batch_size):
            metric.update(trained.model(images), labels)
            num_images += len(labels)
            if progress is not None:
                progress(num_images, len(dataset.test))
    confusion = metric.compute()
    num_correct = int(confusion.diagonal().sum())
    evaluation = Evaluation(
        dataset=dataset.name,
        test_images=num_images,
        accuracy=num_correct / num_images,
        interval=wilson_interval(num_correct, num_images),
        accuracy_by_class=[
            row[label] / sum(row) if sum(row) else None
            for label, row in enumerate(confusion.tolist())
        ],
        confusion=confusion.tolist(),
    )
    write_json(folder / EVALUATION_FILE, {**gather_provenance(command), **asdict(evaluation)})
    return evaluation


def export(trained: TrainedRun, out: str | Path, *, dtype: str = "float32") -> Path:
    """Export the best model of a run as a model file, which `teka.models.load` reads.

    The model file also contains the run's configuration, its training result, and the test accuracy
    if `evaluate` has measured it.

    >>> import teka
    >>> from teka.training import export, restore
    >>> folder = export(restore("runs/digits"), "models/digits")  # doctest: +SKIP
    >>> model = teka.models.load(folder)  # doctest: +SKIP

    Args:
        trained: Finished run to export.
        out: Folder of the model file. An existing model file is replaced.
        dtype: Dtype of the stored weights: "float32", or "float16", which rounds them.

    Returns:
        The folder.

    Raises:
        ImportError: safetensors is not installed.
        ValueError: The folder contains other files, or the weights overflow in this dtype.
    """
    run = trained.run
    dataset = trained.dataset
    facts: dict[str, Any] = {"run": encode(run.to_dict())}
    # The data folder and the paths in the command exist only on this machine.
    del facts["run"]["data_dir"]
    facts["training"] = {name: value for name, value in trained.result.items() if name != "command"}
    evaluation_file = trained.folder / EVALUATION_FILE
    if evaluation_file.is_file():
        evaluation = read_json(evaluation_file)
        facts["evaluation"] = {
            name: evaluation[name] for name in EVALUATION_FACTS if name in evaluation
        }
    config = ModelConfig(
        run.network.model,
        **dataset.sizes,
        options=run.network.options,
        class_names=dataset.class_names,
        pictures=encode(choose_picture_settings(run.images.data, dataset.image_size)),
        facts=facts,
    )
    return save(trained.model, check_model_folder("out", out), config, dtype=dtype)
