"""A record of a network's heads over its training, as a file beside the run."""

import dataclasses
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from teka.files import write_bytes
from teka.grid import Grid
from teka.models import SelfAttentionNetwork
from teka.training.heads.grid import HeadGrid, chance_head_grid, head_grid
from teka.training.heads.measure import Heads, heads_of, middle_query
from teka.training.run import Run

HEADS_FILE = "heads.npz"
ACCURACIES = ("train_accuracy", "validation_accuracy")


@dataclasses.dataclass(frozen=True)
class Moment:
    """The heads after some epochs of training.

    Args:
        epoch: Whole epochs trained, 0 before the first.
        accuracy: Accuracies of that epoch by their name, those that were measured.
        heads: The heads.
        grids: How near those of each layer are to a grid.
    """

    epoch: int
    accuracy: Mapping[str, float]
    heads: Heads
    grids: Sequence[HeadGrid]

    def to_dict(self) -> dict[str, object]:
        """Plain containers and tensors, which a checkpoint may hold."""
        grids = [dataclasses.asdict(one) for one in self.grids]
        return {"epoch": self.epoch, "accuracy": dict(self.accuracy), "heads": self.heads.tensors(), "grids": grids}

    @classmethod
    def from_dict(cls, fields: Mapping) -> "Moment":
        """What `to_dict` gave."""
        grids = [HeadGrid(**one) for one in fields["grids"]]
        return cls(fields["epoch"], fields["accuracy"], Heads(**fields["heads"]), grids)


class HeadRecorder(Callback):
    """Keeps the heads before training and after every epoch, and writes them as `heads.npz`, whole or not at all.

    The moments are part of a checkpoint, so that a resumed run has all of them; one that began without a record has
    those from there on.

    Args:
        model: The network that is trained.
        run: What is trained.
        folder: The run's folder.
    """

    def __init__(self, model: SelfAttentionNetwork, run: Run, folder: Path) -> None:
        self.model = model
        self.run = run
        self.folder = folder
        self.moments: list[Moment] = []
        self._chance: list[HeadGrid] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the heads as they begin."""
        if not self.moments:
            self._keep(trainer, epoch=trainer.current_epoch)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the heads after the epoch."""
        self._keep(trainer, epoch=trainer.current_epoch + 1)

    def state_dict(self) -> dict[str, object]:
        """The moments so far."""
        return {"moments": [moment.to_dict() for moment in self.moments]}

    def load_state_dict(self, state_dict: dict) -> None:
        """Go on with a record."""
        self.moments = [Moment.from_dict(fields) for fields in state_dict["moments"]]

    def _keep(self, trainer: Trainer, *, epoch: int) -> None:
        heads = heads_of(self.model)
        metrics = {
            name: float(trainer.callback_metrics[name]) for name in ACCURACIES if name in trainer.callback_metrics
        }
        self.moments.append(Moment(epoch, metrics, heads, head_grids(heads)))
        if trainer.is_global_zero:
            self._chance = self._chance or chance_head_grids(heads, self.model.grid, self.run)
            content = encode_record(self.moments, self._chance, self.model, self.run)
            write_bytes(self.folder / HEADS_FILE, content)


def head_grids(heads: Heads) -> list[HeadGrid]:
    """How near the heads of each layer are to a grid.

    Args:
        heads: The heads of all layers.
    """
    return [head_grid(heads.of_layer(layer)) for layer in sorted(set(heads.layer.tolist()))]


def chance_head_grids(heads: Heads, grid: Grid, run: Run) -> list[HeadGrid]:
    """What the initial parameters of each layer give in the mean.

    Args:
        heads: The heads of all layers.
        grid: Their grid.
        run: What is trained.
    """
    counts = Counter(heads.layer.tolist())
    drawn = {
        count: chance_head_grid(run.encoding, heads=count, grid=grid, embedding_dim=run.dim)
        for count in set(counts.values())
    }
    return [drawn[counts[layer]] for layer in sorted(counts)]


def encode_record(
    moments: Sequence[Moment], chance: Sequence[HeadGrid], model: SelfAttentionNetwork, run: Run
) -> bytes:
    """The file: arrays with the fields of `Heads` for each moment and head, those of `HeadGrid` for each and layer.

    Beside them are "layer" of each head, "chance_" with a field of `HeadGrid` for each layer, "epoch" and the two
    accuracies of each moment (NaN where not measured), "encoding", "content" (empty for none), "grid" (rows and
    columns) and "query" (row and column).

    Args:
        moments: The moments, one or more.
        chance: What initial parameters give in the mean, for each layer.
        model: The network.
        run: What is trained.
    """
    over_time = {
        name: np.stack([moment.heads.tensors()[name].numpy() for moment in moments])
        for name in moments[0].heads.tensors()
    }
    layer = over_time.pop("layer")[0]
    arrays = {
        "encoding": np.array(run.encoding),
        "content": np.array(run.content or ""),
        "grid": np.array(model.grid.shape),
        "query": np.array(middle_query(model.grid)),
        "layer": layer,
        "epoch": np.array([moment.epoch for moment in moments]),
        **{name: np.array([moment.accuracy.get(name, np.nan) for moment in moments]) for name in ACCURACIES},
        **over_time,
    }
    for field in dataclasses.fields(HeadGrid):
        arrays[field.name] = np.array([[getattr(one, field.name) for one in moment.grids] for moment in moments])
        arrays[f"chance_{field.name}"] = np.array([getattr(one, field.name) for one in chance])
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()
