"""Training of a run with Lightning, from scratch or from the last checkpoint."""

import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import Callback, EarlyStopping, LearningRateMonitor, Timer
from lightning.pytorch.trainer.states import TrainerStatus

from teka import data
from teka.data import Dataset
from teka.data.dataset import SPLITS
from teka.errors import first_line_of_error, is_out_of_memory, shorten, wrong_value
from teka.files import make_directory, read_json, write_json
from teka.memory import count_parameters, memory_bytes
from teka.models import ModelConfig
from teka.provenance import gather_provenance
from teka.reporting.formatting import format_count
from teka.training.checkpoint import (
    CHECKPOINTS,
    LAST,
    PREVIOUS,
    AtomicCheckpointIO,
    Checkpoints,
    find_resume_checkpoint,
)
from teka.training.classifier import Classifier
from teka.training.execution import Execution
from teka.training.loggers import check_logger_names, open_loggers
from teka.training.processes import ProcessLayout, is_first_process
from teka.training.progress import SpeedPrinter
from teka.training.run import RESULT_FILE, RUN_FILE, Run

LOCK_FILE = ".lock"
LIGHTNING_PRECISIONS: Any = {"float32": "32-true", "bfloat16": "bf16-mixed", "float16": "16-mixed"}
IGNORED_WARNINGS = (
    ".*does not have many workers",  # workers would not read images in memory faster
    "Total length of .* across ranks is zero",  # a run may have no validation images
    ".*exists and is not empty",  # the folder of a resumed run
    ".*LeafSpec",  # Lightning uses an old interface of PyTorch
)


def read_training_result(folder: Path) -> dict[str, Any]:
    """Read the file `result.json` of a finished run."""
    result = read_json(folder / RESULT_FILE)
    for name in ("parameters", "epochs", "seconds"):
        if not isinstance(result.get(name), (int, float)):
            raise wrong_value(
                f"{name} of {folder / RESULT_FILE}",
                result.get(name),
                "a number, as teka train writes it",
            )
    return {"validation_accuracy": None, **result}


def load_data(run: Run) -> Dataset:
    """Load the data set of a run. Its splits are the same for every seed of the run."""
    options = dict(vars(run.images))
    return data.load(options.pop("data"), **options)


def train(
    run: Run,
    out: str | Path,
    *,
    resume: bool = False,
    command: str = "",
    dataset: Dataset | None = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[str] = (),
    progress_bar: bool = True,
    execution: Execution | None = None,
) -> dict[str, Any]:
    """Train a run, and write its configuration, result, logs and checkpoints to a folder.

    - `run.json` holds the configuration, and `result.json` the result.
    - `logs/` gets a new folder with a CSV table and TensorBoard events at each start of the run.
    - `checkpoints/` holds `last.ckpt` (the last epoch) and `best.ckpt` (the epoch with the highest
      validation accuracy, or the last epoch if there are no validation images).

    In distributed training, each process calls this function. Only the first process writes files
    and prints.

    >>> from teka.training import Run, train
    >>> run = Run.from_recipe("teka", data="digits", epochs=2)
    >>> result = train(run, "runs/digits")  # doctest: +SKIP
    >>> accuracy = result["validation_accuracy"]  # doctest: +SKIP

    Args:
        run: Data, model, recipe and seed. If the model has a method
            `training_callbacks(run, folder)`, its Lightning callbacks are added.
        out: Folder of the run.
        resume: Continue after the last complete epoch in the folder, or start from scratch if there
            is none. If the run is already finished, only return its result.
        command: Command line to save in the result.
        dataset: Data set to use instead of the one that the run names. Pass the same data set to
            `restore` later.
        callbacks: Lightning callbacks to add. Their state is saved and resumed.
        loggers: Additional loggers: "wandb", "mlflow" or both.
        progress_bar: Print the speed, the remaining time, and the accuracy after each epoch.
        execution: Options for devices, speed and memory.

    Returns:
        The content of `result.json`.

    Raises:
        ValueError: The folder contains another run, or any run if `resume` is False. Another
            process trains in the folder. Or the options do not fit the images or the machine.
        KeyboardInterrupt: The training was interrupted by Ctrl-C or SIGTERM. It can be resumed.
        FloatingPointError: The loss or a weight became NaN or infinite.
        MemoryError: A step did not fit into memory.
    """
    check_logger_names(loggers)
    execution = execution or Execution()
    processes = ProcessLayout.detect(execution.devices)
    recipe = run.recipe
    precision = execution.choose_precision(recipe.precision)
    with _lock_run_folder(out, run, resume=resume) as folder:
        is_quiet = not (progress_bar and is_first_process())
        report = (lambda text: None) if is_quiet else partial(print, flush=True)
        if resume and (folder / RESULT_FILE).is_file():
            report(f"{folder}: the run is already finished")
            return read_training_result(folder)
        epochs = format_count(recipe.epochs, "epoch")
        report(f"training {run.model} on {run.data}, at most {epochs}, in {folder}")
        dataset = dataset or load_data(run)
        _check_dataset(run, dataset)
        num_micro_batches = execution.accumulate * processes.devices * processes.num_nodes
        if num_micro_batches > recipe.batch_size:
            expected = f"at most batch_size = {recipe.batch_size}"
            raise wrong_value("accumulate × processes", num_micro_batches, expected)
        seed_everything(run.seed, verbose=False)
        options = run.network.options
        config = ModelConfig(run.network.model, **dataset.sizes, options=options)
        # Weights, gradients and two moments in float32 must fit into memory.
        model = config.make_model(memory_bytes() // 16, warns=True).train()
        classifier = Classifier(model, run, dataset)
        execution.checkpoint_and_compile(model, classifier.num_steps)
        checkpoints = Checkpoints(
            folder / CHECKPOINTS, run, find_resume_checkpoint(folder, run) if resume else None
        )
        progress = SpeedPrinter(len(dataset.train), recipe.batch_size, precision, report)
        timer = Timer()
        make_callbacks = getattr(model, "training_callbacks", lambda run, folder: [])
        all_callbacks = [*make_callbacks(run, folder), *callbacks, timer, progress]
        all_callbacks += [LearningRateMonitor("epoch"), checkpoints]
        if recipe.patience is not None:
            all_callbacks.append(
                EarlyStopping("validation_accuracy", mode="max", patience=recipe.patience)
            )
        opened_loggers = open_loggers(loggers if is_first_process() else (), folder, run)
        with warnings.catch_warnings(), opened_loggers as loggers_of_run:
            warnings.filterwarnings("ignore", message="|".join(IGNORED_WARNINGS))
            try:
                trainer = Trainer(
                    default_root_dir=folder,
                    max_epochs=recipe.epochs,
                    accelerator=execution.accelerator,
                    devices=processes.devices,
                    num_nodes=processes.num_nodes,
                    plugins=[AtomicCheckpointIO(), *processes.lightning_environment_overrides()],
                    accumulate_grad_batches=execution.accumulate,
                    precision=LIGHTNING_PRECISIONS[precision],
                    use_distributed_sampler=False,
                    callbacks=all_callbacks,
                    enable_progress_bar=False,
                    logger=loggers_of_run,
                    gradient_clip_val=recipe.gradient_clip or None,
                    log_every_n_steps=1,
                    num_sanity_val_steps=0,
                    enable_model_summary=False,
                )
            except MisconfigurationException as error:
                raise wrong_value(
                    "accelerator",
                    execution.accelerator,
                    f"available with enough devices ({first_line_of_error(error)})",
                ) from error
            if is_first_process():
                run.save(folder)
            _fit_classifier(trainer, classifier, checkpoints)
        result = {
            **gather_provenance(command),
            "data": dataset.name,
            "parameters": count_parameters(model),
            "epochs": trainer.current_epoch,
            "seconds": round(timer.time_elapsed("train"), 2),
            "train_images_per_second": progress.images_per_second,
            "train_images": len(dataset.train),
            "validation_images": len(dataset.validation),
            "validation_accuracy": checkpoints.best_accuracy,
        }
        if is_first_process():
            (checkpoints.folder / PREVIOUS).unlink(missing_ok=True)
            write_json(folder / RESULT_FILE, result)
        return result


def _check_dataset(run: Run, dataset: Dataset) -> None:
    if len(dataset.train.labels.unique()) < 2:
        raise wrong_value("data", run.data, "training images of at least two classes")
    labels = torch.cat([getattr(dataset, split).labels for split in SPLITS])
    if missing := set(range(dataset.num_classes)).difference(labels.tolist()):
        warnings.warn(
            f"No image of {dataset.name} has the label {shorten(str(missing)[1:-1], 100)}. Labels "
            "should count the classes from 0 without gaps.",
            stacklevel=3,
        )
    if run.recipe.random_shift > min(dataset.image_size):
        raise wrong_value(
            "random_shift",
            run.recipe.random_shift,
            f"at most a side of the images, {dataset.image_size}",
        )


def _fit_classifier(trainer: Trainer, classifier: Classifier, checkpoints: Checkpoints) -> None:
    """Train a classifier, and replace low-level errors by errors that say what to change."""
    start = checkpoints.start
    try:
        trainer.fit(classifier, ckpt_path=start, weights_only=True)
    except (ArithmeticError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        if is_out_of_memory(error):
            last = checkpoints.folder / LAST
            kept = f"{last} contains the last complete epoch"
            raise MemoryError(
                f"A step does not fit into memory in epoch {trainer.current_epoch + 1}, step "
                f"{trainer.global_step}: {first_line_of_error(error)}. Reduce "
                "batch_size, turn on activation_checkpointing, or raise accumulate from "
                f"{trainer.accumulate_grad_batches}. "
                f"{kept if last.is_file() else 'No epoch is complete'}."
            ) from error
        if start is None or checkpoints.has_started:
            raise
        raise wrong_value(
            "checkpoint", str(start), f"the state of this training ({first_line_of_error(error)})"
        ) from error
    except SystemExit as error:
        # Lightning exits after Ctrl-C.
        if trainer.state.status == TrainerStatus.INTERRUPTED:
            raise KeyboardInterrupt from error
        raise


@contextmanager
def _lock_run_folder(out: str | Path, run: Run, *, resume: bool) -> Iterator[Path]:
    """Context manager that creates the folder of a run, and locks it against other processes.

    If an error occurs before the run is saved, a new folder is removed again. In distributed
    training, only the first process creates, locks and removes the folder.

    Raises:
        ValueError: Another process trains in the folder. Or the folder contains a run, and `resume`
            is False or the configuration of that run is different.
    """
    folder = Path(out)
    if not is_first_process():
        yield folder
        return
    is_new = not folder.exists()
    try:
        lock = FileLock(make_directory("out", out) / LOCK_FILE).acquire(blocking=False)
    except Timeout as error:
        raise wrong_value(
            "out", str(out), "a folder in which no other training run is active"
        ) from error
    except NotImplementedError:  # the file system has no locks
        lock = nullcontext()
    with lock:
        try:
            if (folder / RUN_FILE).exists():
                if not resume:
                    hint = "Resume the run in this folder, or choose another folder."
                    raise wrong_value("out", str(out), "a folder without a run", hint)
                if names := run.differing_fields(Run.load(folder)):
                    hint = f"It differs in {', '.join(names)}."
                    raise wrong_value("out", str(out), "the folder of the same run", hint)
            yield folder
        finally:
            if is_new and not (folder / RUN_FILE).exists():
                shutil.rmtree(folder, ignore_errors=True)
