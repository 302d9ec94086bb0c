"""A record of a network's heads over its training, `heads.npz`: kept while it goes on, and read back."""

import dataclasses
import io
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from numpy.typing import NDArray

from reproduction.baselines import SelfAttentionNetwork
from reproduction.heads.measure import (
    HeadGrid,
    Heads,
    chance_head_grids,
    head_grids,
    heads_of,
    middle_query,
)
from teka.errors import wrong_argument, wrong_shape, wrong_value
from teka.files import check_unpacked_size, write_bytes
from teka.training.run import Run

HEADS_FILE = "heads.npz"
BEFORE_PRUNING_FILE = "heads_before_pruning.npz"  # of the run that a pruned one was
ACCURACIES = ("train_accuracy", "validation_accuracy")
NUMBERS = tuple(field.name for field in dataclasses.fields(HeadGrid))
KINDS = {"U": "a text", "iu": "whole numbers", "fiu": "numbers"}  # of dtypes, by their letters
Layout = Mapping[str, tuple[str, tuple[int | str, ...]]]
LAYOUT: Layout = {
    **dict.fromkeys(("encoding", "content"), ("U", ())),
    **dict.fromkeys(("grid", "query"), ("iu", (2,))),
    "layer": ("iu", ("heads",)),
    "epoch": ("iu", ("moments",)),
    **dict.fromkeys(ACCURACIES, ("fiu", ("moments",))),
    **dict.fromkeys(("center", "mean"), ("fiu", ("moments", "heads", 2))),
    **dict.fromkeys(("precision", "covariance"), ("fiu", ("moments", "heads", 2, 2))),
    "offset": ("iu", ("moments", "heads", 2)),
    "weight": ("fiu", ("moments", "heads")),
    **dict.fromkeys(NUMBERS, ("fiu", ("moments", "layers"))),
    **dict.fromkeys([f"chance_{name}" for name in NUMBERS], ("fiu", ("layers",))),
}
"""Fields of `Heads` for each moment and head, and of `HeadGrid` for each moment and layer, "chance_" before training.

An accuracy is NaN where it was not measured, and "content" empty for none; "grid" and "query" are by row and column.
"""
# Eigenvalues of a precision below this are a head that attends everywhere: a standard deviation of 1,000 tokens.
LEAST_PRECISION = 1e-6


@dataclass(frozen=True)
class Moment:
    """The heads after whole epochs of training, the accuracies of the last of them, and the grid of each layer."""

    epoch: int
    accuracy: Mapping[str, float]
    heads: Heads
    grids: Sequence[HeadGrid]

    def to_dict(self) -> dict[str, object]:
        """Plain containers and tensors, which a checkpoint may hold."""
        grids = [vars(one) for one in self.grids]
        return {
            **vars(self),
            "accuracy": dict(self.accuracy),
            "heads": self.heads._asdict(),
            "grids": grids,
        }

    @classmethod
    def from_dict(cls, fields: Mapping) -> "Moment":
        """What `to_dict` gave."""
        grids = [HeadGrid(**one) for one in fields["grids"]]
        return cls(fields["epoch"], fields["accuracy"], Heads(**fields["heads"]), grids)


class HeadRecorder(Callback):
    """Keeps the heads before training and after every epoch, in its checkpoints too, and writes them as `heads.npz`."""

    def __init__(self, model: SelfAttentionNetwork, run: Run, folder: Path) -> None:
        self.model, self.run, self.folder = model, run, folder
        self.moments: list[Moment] = []
        self._chance: list[HeadGrid] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self.moments:
            self._keep(trainer, epoch=trainer.current_epoch)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._keep(trainer, epoch=trainer.current_epoch + 1)

    def state_dict(self) -> dict[str, object]:
        return {"moments": [moment.to_dict() for moment in self.moments]}

    def load_state_dict(self, state_dict: dict) -> None:
        self.moments = [Moment.from_dict(fields) for fields in state_dict["moments"]]

    def _keep(self, trainer: Trainer, *, epoch: int) -> None:
        heads, metrics = heads_of(self.model), trainer.callback_metrics
        accuracy = {name: float(metrics[name]) for name in ACCURACIES if name in metrics}
        self.moments.append(Moment(epoch, accuracy, heads, head_grids(heads)))
        if trainer.is_global_zero:
            self._chance = self._chance or chance_head_grids(
                self.run, heads.layers, self.model.grid
            )
            content = io.BytesIO()
            np.savez_compressed(content, **self._arrays())
            write_bytes(self.folder / HEADS_FILE, content.getbuffer())

    def _arrays(self) -> dict[str, Any]:
        moments = self.moments
        return {
            "encoding": self.run.position,
            "content": self.run.content or "",
            "grid": self.model.grid.shape,
            "query": middle_query(self.model.grid),
            "epoch": [moment.epoch for moment in moments],
            **{
                name: [moment.accuracy.get(name, np.nan) for moment in moments]
                for name in ACCURACIES
            },
            **{
                name: np.stack([getattr(moment.heads, name).numpy() for moment in moments])
                for name in Heads._fields
            },
            "layer": moments[0].heads.layer.numpy(),
            **{
                name: [[getattr(one, name) for one in moment.grids] for moment in moments]
                for name in NUMBERS
            },
            **{f"chance_{name}": [getattr(one, name) for one in self._chance] for name in NUMBERS},
        }


@dataclass(frozen=True)
class HeadRecord:
    """The arrays of `LAYOUT`, those of `HeadGrid` by name as `numbers` and `chance`."""

    position: str
    content: str
    grid: tuple[int, int]
    query: tuple[int, int]
    layer: NDArray[np.integer]
    epoch: NDArray[np.integer]
    train_accuracy: NDArray[np.floating]
    validation_accuracy: NDArray[np.floating]
    center: NDArray[np.floating]
    precision: NDArray[np.floating]
    mean: NDArray[np.floating]
    covariance: NDArray[np.floating]
    offset: NDArray[np.integer]
    weight: NDArray[np.floating]
    numbers: Mapping[str, NDArray[np.floating]]
    chance: Mapping[str, NDArray[np.floating]]

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.chance["heads"])

    @property
    def is_gaussian(self) -> bool:
        """Whether the heads are Gaussians, with centers and precisions of their own."""
        return bool(np.isfinite(self.center).all())

    @property
    def middles(self) -> NDArray[np.floating]:
        """Where each head looks, (moments, heads, 2): the center of a Gaussian, else the attention's mean."""
        return self.center if self.is_gaussian else self.mean

    def shapes(self, moment: int) -> NDArray[np.floating]:
        """Covariance of each head at a moment, (heads, 2, 2): that of the Gaussian, else the attention's."""
        if not self.is_gaussian:
            return self.covariance[moment]
        values, vectors = np.linalg.eigh(self.precision[moment])
        return np.einsum(
            "hak,hk,hbk->hab", vectors, 1 / np.maximum(values, LEAST_PRECISION), vectors
        )

    def when(self, moment: int) -> str:
        """When a moment was: "start", or "epoch 7"."""
        epoch = int(self.epoch[moment])
        return f"epoch {epoch}" if epoch else "start"


def load_head_record(path: str | Path) -> HeadRecord:
    """Read `heads.npz`; nothing in it is unpickled."""
    arrays: dict[str, Any] = _read_arrays(Path(path))
    layer = arrays["layer"].tolist()
    if set(layer) != set(range(len(arrays["chance_heads"]))):
        raise wrong_value(
            f"{path}: layer", layer, "heads of layers from 0, as many as there are counts of"
        )
    numbers, chance = (
        {name: arrays.pop(prefix + name) for name in NUMBERS} for prefix in ("", "chance_")
    )
    for name, (kinds, _) in LAYOUT.items():
        if kinds == "U":
            arrays[name] = str(arrays[name])
        elif name in ("grid", "query"):
            arrays[name] = tuple(arrays[name].tolist())
    return HeadRecord(position=arrays.pop("encoding"), **arrays, numbers=numbers, chance=chance)


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of `LAYOUT`, of its kinds and shapes; a size with a name is at least 1 and ever the same."""
    if not path.is_file():
        raise ValueError(
            f"{path} is not a file, expected the heads.npz of a run of model 'self_attention'"
        )
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not an .npz archive")
    try:
        with np.load(path, allow_pickle=False) as archive:
            check_unpacked_size(archive.zip, path)
            arrays = {name: archive[name] for name in LAYOUT if name in archive.files}
    except (ValueError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    sizes: dict[str, int] = {}
    for name, (kinds, shape) in LAYOUT.items():
        if name not in arrays:
            raise ValueError(f"{path} lacks an array: {name}")
        _check(f"{path}: {name}", arrays[name], kinds, shape, sizes)
        if "f" in kinds:
            arrays[name] = arrays[name].astype(np.float64)
    return arrays


def _check(
    name: str, array: np.ndarray, kinds: str, shape: Sequence[int | str], sizes: dict[str, int]
) -> None:
    if array.dtype.kind not in kinds:
        raise wrong_argument(name, f"{array.dtype} of shape {array.shape}", KINDS[kinds])
    pairs = zip(shape, array.shape, strict=False)
    known = tuple(
        sizes.setdefault(wanted, size) if isinstance(wanted, str) else wanted
        for wanted, size in pairs
    )
    if array.shape != known or array.ndim != len(shape) or 0 in known:
        words = ", ".join(
            f"{size} = {sizes[size]}" if size in sizes else str(size) for size in shape
        )
        raise wrong_shape(name, array.shape, f"({words}), none of them 0")
