"""A trained run, read back from its folder."""

import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from teka.data import Dataset
from teka.errors import wrong_value
from teka.training.checkpoint import BEST, CHECKPOINTS, check_run, load_weights
from teka.training.run import Run
from teka.training.train import RESULT_FILE, load_data, read_result


@dataclass(frozen=True)
class TrainedRun:
    """A run with its best model, in evaluation mode, its data and what training wrote of it.

    Args:
        folder: The run's folder.
        run: What was trained.
        model: The model with the weights of the best checkpoint.
        dataset: Its data.
        result: What `result.json` holds.
    """

    folder: Path
    run: Run
    model: nn.Module
    dataset: Dataset
    result: dict[str, object]

    @property
    def name(self) -> str:
        """What to call the model in tables: a Performer by its position and its content kernel."""
        return f"{self.run.position}, {self.run.kernel}" if self.run.model == "performer" else self.run.model


def restore(folder: str | Path, *, data_dir: str | None = None) -> TrainedRun:
    """Read a finished run back.

    Args:
        folder: The run's folder.
        data_dir: Folder with the data set's files, if it is another than in training.

    Raises:
        ValueError: Not a run's folder, not trained to its end, or a checkpoint of another architecture.
    """
    folder = Path(folder)
    run = Run.load(folder)
    if not (folder / RESULT_FILE).is_file():
        raise wrong_value("run", str(folder), "a finished run; go on with teka train --resume")
    result = read_result(folder)
    check_run(folder / CHECKPOINTS / BEST, run)
    fields = run.to_dict() if data_dir is None else {**run.to_dict(), "data_dir": data_dir}
    dataset = load_data(Run.from_dict(fields))
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is to be said of the model was said when it was trained
        model = run.make_model(
            image_size=dataset.image_size, in_channels=dataset.in_channels, num_classes=dataset.num_classes
        )
    load_weights(model, folder / CHECKPOINTS / BEST)
    model.eval()
    return TrainedRun(folder, run, model, dataset, result)
