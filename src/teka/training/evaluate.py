"""Accuracy of a trained run on its test images."""

from dataclasses import asdict, dataclass

import torch
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix

from teka.audit import wilson_interval
from teka.errors import wrong_value
from teka.files import check_output, write_json
from teka.provenance import provenance
from teka.training.batches import batches
from teka.training.restore import TrainedRun

EVALUATION_FILE = "evaluation.json"


@dataclass(frozen=True)
class Evaluation:
    """Accuracy of a run on its test images.

    Args:
        dataset: Name of the data.
        test_images: Number of images.
        accuracy: Share answered rightly.
        interval: Its 95 % Wilson interval.
        accuracy_by_class: The same for the images of each class.
        confusion: Number of images of each class (row) answered as each class (column).
    """

    dataset: str
    test_images: int
    accuracy: float
    interval: tuple[float, float]
    accuracy_by_class: list[float]
    confusion: list[list[int]]


def evaluate(trained: TrainedRun, *, batch_size: int = 256, command: str = "") -> Evaluation:
    """Measure a run on every test image and write `evaluation.json` into its folder.

    Args:
        trained: The run.
        batch_size: Images at a time.
        command: The command to keep with the numbers.

    Raises:
        ValueError: A batch size below 1, or a folder that cannot be written to.
    """
    if batch_size < 1:
        raise wrong_value("batch_size", batch_size, "at least 1")
    check_output("run", trained.folder / EVALUATION_FILE)
    num_classes = trained.dataset.num_classes
    by_class = MulticlassAccuracy(num_classes, average=None)
    confusion = MulticlassConfusionMatrix(num_classes)
    with torch.inference_mode():
        for images, labels in batches(trained.dataset.test, batch_size=batch_size):
            logits = trained.model(images)
            by_class.update(logits, labels)
            confusion.update(logits, labels)
    matrix = confusion.compute()
    num_images, right = len(trained.dataset.test), int(matrix.diagonal().sum())
    low, high = wilson_interval(right, num_images)
    evaluation = Evaluation(
        dataset=trained.dataset.name,
        test_images=num_images,
        accuracy=right / num_images,
        interval=(float(low), float(high)),
        accuracy_by_class=by_class.compute().tolist(),
        confusion=matrix.tolist(),
    )
    write_json(trained.folder / EVALUATION_FILE, {**provenance(command), **asdict(evaluation)})
    return evaluation
