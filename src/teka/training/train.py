"""Training a run: from nothing, or on from where it was."""

import shutil
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import Callback, EarlyStopping, LearningRateMonitor, ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.trainer.states import TrainerStatus
from lightning.pytorch.utilities.types import STEP_OUTPUT

from teka import data
from teka.data import Dataset
from teka.errors import wrong_value
from teka.files import make_directory, read_json, write_json
from teka.provenance import provenance
from teka.training.batches import batches, train_batches
from teka.training.checkpoint import BEST, CHECKPOINTS, LAST, callback_state
from teka.training.classifier import Classifier
from teka.training.run import RUN_FILE, Run

RESULT_FILE = "result.json"


def load_data(run: Run) -> Dataset:
    """The data set of a run, split the same for every seed."""
    return data.load(
        run.data,
        data_dir=run.data_dir,
        image_size=run.image_size,
        validation_size=run.validation_size,
        train_size=run.train_size,
    )


def train(
    run: Run,
    out: str | Path,
    *,
    resume: bool = False,
    command: str = "",
    dataset: Dataset | None = None,
    callbacks: Sequence[Callback] = (),
    progress_bar: bool = True,
) -> dict[str, object]:
    """Train a run and write into its folder what it was, how it went and what came of it.

    The folder holds `run.json`, `result.json`, `logs/` (a CSV table and TensorBoard's events for each start) and
    `checkpoints/` with the best epoch's state (by validation accuracy; the last where nothing is held out) and the
    last's.

    Args:
        run: What to train.
        out: The run's folder.
        resume: Go on from the last whole epoch that the folder holds; without one, begin; a finished run is left alone.
        command: The command to keep with the result.
        dataset: What `load_data(run)` gives, for a caller that has it already.
        callbacks: Lightning's callbacks besides those of every run; what they keep in their state is resumed too.
        progress_bar: Whether to show a bar.

    Returns:
        What `result.json` holds.

    Raises:
        ValueError: The folder is a file, or holds a run already and `resume` is False, or a different run.
        KeyboardInterrupt: Interrupted; the folder can be resumed.
        FloatingPointError: The loss became NaN or infinite; the folder holds the last sound epoch.
    """
    folder = make_directory("out", out)
    _check_folder(folder, run, resume=resume)
    if resume and (folder / RESULT_FILE).is_file():
        return read_json(folder / RESULT_FILE)
    dataset = load_data(run) if dataset is None else dataset
    seed_everything(run.seed, verbose=False)
    model = run.make_model(
        image_size=dataset.image_size, in_channels=dataset.in_channels, num_classes=dataset.num_classes
    )
    run.save(folder)
    loader = train_batches(dataset.train, batch_size=run.batch_size, seed=run.seed)
    classifier = Classifier(model, run, num_classes=dataset.num_classes, num_steps=run.epochs * len(loader))
    last = folder / CHECKPOINTS / LAST
    # Each start of a run logs to a folder of its own, so that resuming keeps what was logged.
    table = CSVLogger(folder, name="logs")
    held_out = len(dataset.validation) > 0
    clock = _Clock(seconds_so_far(last) if resume and last.is_file() else 0.0)
    trainer = Trainer(
        max_epochs=run.epochs,
        accelerator="auto",
        devices=1,
        callbacks=[
            clock,
            *([_ProgressBar()] if progress_bar else []),
            *callbacks,
            *_callbacks(run, folder, held_out=held_out),
        ],
        enable_progress_bar=progress_bar,
        logger=[table, TensorBoardLogger(folder, name="logs", version=table.version)],
        gradient_clip_val=run.gradient_clip or None,
        log_every_n_steps=1,
        num_sanity_val_steps=0,
        enable_model_summary=False,
    )
    with warnings.catch_warnings():
        # The images are tensors in memory: processes to load them would only cost.
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")
        # Holding nothing out is a choice of the run's.
        warnings.filterwarnings("ignore", message=".*have no `val_dataloader`.*")
        # The folder is the run's own, and is there when a run goes on.
        warnings.filterwarnings("ignore", message=".*exists and is not empty.*")
        # Lightning's own use of torch's pytrees.
        warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
        try:
            trainer.fit(
                classifier,
                loader,
                batches(dataset.validation, batch_size=run.batch_size) if held_out else None,
                ckpt_path=last if resume and last.is_file() else None,
                weights_only=True,
            )
        except SystemExit as error:
            # Lightning turns Ctrl-C into an exit; the caller is to know what it was.
            if trainer.state.status == TrainerStatus.INTERRUPTED:
                raise KeyboardInterrupt from error
            raise
    if not held_out:
        shutil.copyfile(folder / CHECKPOINTS / LAST, folder / CHECKPOINTS / BEST)
    result: dict[str, object] = {
        **provenance(command),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "epochs": trainer.current_epoch,
        "seconds": round(clock.seconds, 2),
        "train_images": len(dataset.train),
        "validation_images": len(dataset.validation),
        "validation_accuracy": clock.best_validation_accuracy,
    }
    write_json(folder / RESULT_FILE, result)
    return result


def seconds_so_far(checkpoint: Path) -> float:
    """Seconds of training that a checkpoint counts, 0 if it does not say."""
    seconds = callback_state(checkpoint, _Clock.__name__).get("seconds")
    return float(seconds) if isinstance(seconds, int | float) else 0.0


class _ProgressBar(TQDMProgressBar):
    """Lightning's progress bar without the number of the log, and without a second bar for validation."""

    def get_metrics(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> dict[str, int | str | float | dict[str, float]]:
        metrics = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        return metrics

    def init_validation_tqdm(self) -> Tqdm:
        return Tqdm(disable=True)


class _Clock(Callback):
    """Seconds trained, carried over a resume, and a stop when the loss is not a number."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.best_validation_accuracy: float | None = None
        self._since = time.perf_counter()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._since = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: STEP_OUTPUT, batch: object, batch_idx: int
    ) -> None:
        loss = outputs["loss"] if isinstance(outputs, Mapping) else outputs
        if loss is not None and not torch.isfinite(loss):
            raise FloatingPointError(
                f"the loss is {loss.item()} in epoch {trainer.current_epoch}, step {trainer.global_step}; "
                "take a smaller learning_rate or gradient_clip; the last whole epoch's checkpoint is kept"
            )

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        now = time.perf_counter()
        self.seconds += now - self._since
        self._since = now
        accuracy = trainer.callback_metrics.get("validation_accuracy")
        if accuracy is not None:
            self.best_validation_accuracy = max(float(accuracy), self.best_validation_accuracy or 0.0)

    def state_dict(self) -> dict[str, object]:
        return {"seconds": self.seconds, "best_validation_accuracy": self.best_validation_accuracy}

    def load_state_dict(self, state_dict: dict) -> None:
        self.seconds = state_dict["seconds"]
        self.best_validation_accuracy = state_dict["best_validation_accuracy"]


def _callbacks(run: Run, folder: Path, *, held_out: bool) -> list[Callback]:
    watched: dict[str, str | None] = {LAST: None}
    if held_out:
        watched[BEST] = "validation_accuracy"
    callbacks: list[Callback] = [
        ModelCheckpoint(
            folder / CHECKPOINTS,
            filename=Path(name).stem,
            monitor=monitor,
            mode="max",
            save_on_train_epoch_end=True,
            enable_version_counter=False,
        )
        for name, monitor in watched.items()
    ]
    callbacks.append(LearningRateMonitor("epoch"))
    if run.patience is not None:
        callbacks.append(
            EarlyStopping("validation_accuracy", mode="max", patience=run.patience, check_on_train_epoch_end=True)
        )
    return callbacks


def _check_folder(folder: Path, run: Run, *, resume: bool) -> None:
    if not (folder / RUN_FILE).exists():
        return
    if not resume:
        raise wrong_value("out", str(folder), "a folder without a run, or to resume the run it holds")
    found = Run.load(folder)
    if found != run:
        fields = [name for name, value in run.to_dict().items() if found.to_dict()[name] != value]
        raise wrong_value("out", str(folder), f"the same run to resume; it differs in {', '.join(fields)}")
