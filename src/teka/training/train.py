"""Training a run: from nothing, or on from where it was."""

import contextlib
import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import Callback, LearningRateMonitor
from lightning.pytorch.trainer.states import TrainerStatus
from torch import nn

from teka import data
from teka.data import Dataset
from teka.errors import first_line, is_out_of_memory, wrong_value
from teka.files import make_directory, read_json, write_json
from teka.memory import TooManyElementsError, count_elements, memory_bytes
from teka.provenance import provenance
from teka.training.batches import BatchSource
from teka.training.checkpoint import (
    CHECKPOINTS,
    LAST,
    PREVIOUS,
    Checkpoints,
    WholeFiles,
    find_checkpoint,
)
from teka.training.classifier import Classifier
from teka.training.execution import Execution, Processes, is_first_process
from teka.training.loggers import check_loggers, open_loggers
from teka.training.progress import Clock, EpochTable, Throughput, training_flops_per_image
from teka.training.run import RUN_FILE, Run

RESULT_FILE = "result.json"
LOCK_FILE = ".lock"
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
# Lightning's words for a run's precision.
PRECISION: Mapping[str, Any] = {
    "float32": "32-true",
    "bfloat16": "bf16-mixed",
    "float16": "16-mixed",
}


def read_result(folder: Path) -> dict[str, Any]:
    """What `result.json` of a finished run holds."""
    result = read_json(folder / RESULT_FILE)
    for name, kinds in {"parameters": int, "epochs": int, "seconds": (int, float)}.items():
        if not isinstance(found := result.get(name), kinds):
            raise wrong_value(
                f"{name} of {folder / RESULT_FILE}", found, "a number, as teka train writes it"
            )
    return {"validation_accuracy": None, **result}


def load_data(run: Run) -> Dataset:
    """The data set of a run, split the same for every seed."""
    options = vars(run.images).copy()
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
    throughput: bool = True,
    execution: Execution | None = None,
) -> dict[str, object]:
    """Train a run, write into its folder what it was and how it went, and give what `result.json` holds.

    The folder holds `run.json`, `result.json`, `logs/` (a CSV table and TensorBoard's events for each start),
    `checkpoints/` with the best epoch's state (by validation accuracy; the last where nothing is held out) and the
    last's. A model with a method `training_callbacks(run, folder)` adds Lightning callbacks of its own.

    Args:
        run: What to train.
        out: The run's folder.
        resume: Resume after the last whole epoch that the folder holds, or begin; a finished run is left alone.
        command: The command to keep with the result.
        dataset: Data in place of what `load_data(run)` gives; `restore` is to be given the same.
        callbacks: Lightning's callbacks besides those of every run; what they keep in their state is resumed too.
        loggers: Services to log to besides: "wandb", "mlflow"; nothing is sent to one that is not named.
        progress_bar: Whether to print a row of a table for each epoch, and on a terminal a bar below it.
        throughput: Whether to measure images and operations a second, for the table, the logs and the result.
        execution: On what it is trained and in how many parts; of several processes each calls this function, and the
            first writes.

    Raises:
        ValueError: The folder is a file, or holds a run already and `resume` is False, or a different run; another
            training is running in the folder; options that do not fit the images or the machine; a service that is
            unknown, not installed or refuses; other processes than the launcher started.
        KeyboardInterrupt: Interrupted, or asked to end by SIGTERM; the folder can be resumed.
        FloatingPointError: The loss or a weight became NaN or infinite; the folder holds the last sound epoch.
        MemoryError: A step did not fit into memory; the folder holds the last whole epoch.
    """
    check_loggers(loggers)
    execution = Execution() if execution is None else execution
    processes = Processes.of(execution.devices, execution.num_nodes)
    folder = make_directory("out", out)
    if run.precision == "float16" and (
        execution.accelerator == "cpu" or not torch.cuda.is_available()
    ):
        raise wrong_value("precision", run.precision, "'float32' or 'bfloat16' on a CPU")
    with _exclusive_access(folder):
        return _train(
            run,
            folder,
            resume,
            command,
            dataset,
            callbacks,
            loggers,
            progress_bar,
            throughput,
            execution,
            processes,
        )


@contextlib.contextmanager
def _exclusive_access(folder: Path) -> Iterator[None]:
    """Lock a run's folder against other trainings until the block ends or the process dies.

    The first process of a training holds the lock for all its processes.
    """
    if not is_first_process():
        yield
        return
    lock = FileLock(folder / LOCK_FILE)
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        expected = "a folder in which no other training is running; wait for that one, or choose another folder"
        raise wrong_value("out", str(folder), expected) from error
    except NotImplementedError:  # a file system without locks
        pass
    try:
        yield
    finally:
        lock.release()


def _train(
    run: Run,
    folder: Path,
    resume: bool,
    command: str,
    dataset: Dataset | None,
    callbacks: Sequence[Callback],
    loggers: Sequence[str],
    progress_bar: bool,
    throughput: bool,
    execution: Execution,
    processes: Processes,
) -> dict[str, object]:
    is_first = is_first_process()
    if is_first:  # which has written into the folder before the others begin
        _check_folder(folder, run, resume=resume)
    if resume and (folder / RESULT_FILE).is_file():
        return read_result(folder)
    dataset = load_data(run) if dataset is None else dataset
    if dataset.num_classes < 2:
        raise wrong_value("data", run.data, "images of two classes or more")
    seed_everything(run.seed, verbose=False)
    _check_size(run, dataset.sizes)
    model = run.make_model(**dataset.sizes)
    _check_parts(
        model, dataset, run, execution.accumulate * processes.devices * processes.num_nodes
    )
    clock, more, measured = Clock(), list(callbacks), None
    if throughput:
        flops = training_flops_per_image(
            model, dataset.train.images[[0, -1]]
        )  # which are two even of one
        measured = Throughput(flops, run, num_images=len(dataset.train))
        more.insert(0, measured)
    make_callbacks: Any = getattr(model, "training_callbacks", None)
    if make_callbacks is not None:
        more = [*make_callbacks(run, folder), *more]
    execution.prepare(model)
    steps = run.epochs * -(-len(dataset.train) // run.batch_size)
    classifier = Classifier(model, run, num_classes=dataset.num_classes, num_steps=steps)
    checkpoint = find_checkpoint(folder, run) if resume else None
    checkpoints = Checkpoints(folder, run, checkpoint)
    # A terminal that is gone costs no epoch: the table comes last.
    more += [
        LearningRateMonitor("epoch"),
        checkpoints,
        *([EpochTable(clock)] if progress_bar else []),
    ]
    with (
        _without_known_warnings(),
        open_loggers(loggers if is_first else (), folder, run) as opened,
    ):
        try:
            trainer = Trainer(
                default_root_dir=folder,
                max_epochs=run.epochs,
                accelerator=execution.accelerator,
                devices=processes.devices,
                num_nodes=processes.num_nodes,
                plugins=[WholeFiles(), *processes.environments()],
                accumulate_grad_batches=execution.accumulate,
                precision=PRECISION[run.precision],
                use_distributed_sampler=False,
                callbacks=[clock, *more],
                enable_checkpointing=False,
                enable_progress_bar=False,
                logger=opened,
                gradient_clip_val=run.gradient_clip or None,
                log_every_n_steps=1,
                num_sanity_val_steps=0,
                enable_model_summary=False,
            )
        except MisconfigurationException as error:
            expected = f"one that this machine has, with devices enough ({first_line(error)})"
            raise wrong_value("accelerator", execution.accelerator, expected) from error
        if is_first:
            run.save(folder)
        try:
            _fit(
                trainer,
                classifier,
                BatchSource(dataset, run, execution),
                checkpoint,
                folder / CHECKPOINTS / LAST,
            )
        except (ArithmeticError, LookupError, TypeError, AttributeError, RuntimeError) as error:
            if checkpoint is None or checkpoints.has_begun:
                raise
            expected = f"the state of this training ({first_line(error)})"
            raise wrong_value("checkpoint", str(checkpoint), expected) from error
    result: dict[str, object] = {
        **provenance(command),
        "data": dataset.name,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "epochs": trainer.current_epoch,
        "seconds": round(clock.seconds, 2),
        **({} if measured is None else measured.summary()),
        "train_images": len(dataset.train),
        "validation_images": len(dataset.validation),
        "validation_accuracy": checkpoints.best_accuracy,
    }
    if is_first:
        (folder / CHECKPOINTS / PREVIOUS).unlink(missing_ok=True)
        write_json(folder / RESULT_FILE, result)
    return result


def _check_size(run: Run, sizes: Mapping[str, Any]) -> None:
    """Check that the weights, their gradients and two moments have room in memory, before they are made."""
    most = memory_bytes() // 16
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are said when the model is made
            count_elements(lambda: run.make_model(**sizes), most)
    except TooManyElementsError as error:
        asked = {"dim": run.dim, "depth": run.depth, **sizes}
        raise wrong_value(
            "the size of the model", asked, f"one that memory has room for; it has {error}"
        ) from error


def _check_parts(model: nn.Module, dataset: Dataset, run: Run, num_parts: int) -> None:
    """Check that images can be moved, and that every part of a step has one; batch normalisation may need more."""
    if run.random_shift > min(dataset.image_size):
        raise wrong_value(
            "random_shift", run.random_shift, f"at most a side of the images, {dataset.image_size}"
        )
    if num_parts > run.batch_size:
        raise wrong_value(
            "accumulate × processes", num_parts, f"at most batch_size = {run.batch_size}"
        )
    last = len(dataset.train) % run.batch_size or run.batch_size
    if min(last, run.batch_size) // num_parts > 1 or not any(
        isinstance(one, BATCH_NORMS) for one in model.modules()
    ):
        return
    try:
        with torch.no_grad():
            copy.deepcopy(model).train()(dataset.train.images[:1])
    except ValueError as error:
        expected = f"one that leaves no image of {len(dataset.train)} alone, which batch normalisation cannot do with"
        raise wrong_value("batch_size", run.batch_size, expected) from error


def _fit(
    trainer: Trainer,
    classifier: Classifier,
    source: BatchSource,
    checkpoint: Path | None,
    last: Path,
) -> None:
    try:
        trainer.fit(classifier, datamodule=source, ckpt_path=checkpoint, weights_only=True)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise MemoryError(
            f"a step did not fit into memory in epoch {trainer.current_epoch}, step {trainer.global_step}: "
            f"{first_line(error)}; take accumulate above {source.execution.accumulate}, activation_checkpointing or a "
            "smaller batch_size; "
            + (f"{last} keeps the last whole epoch" if last.is_file() else "no epoch was whole yet")
        ) from error
    except SystemExit as error:
        # Lightning turns Ctrl-C into an exit; the caller is to know what it was.
        if trainer.state.status == TrainerStatus.INTERRUPTED:
            raise KeyboardInterrupt from error
        raise


@contextlib.contextmanager
def _without_known_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        for message in (
            ".*does not have many workers.*",  # the images are in memory: processes to load them would only cost
            "Total length of .* across ranks is zero.*",  # holding nothing out is a choice of the run's
            ".*exists and is not empty.*",  # the folder is the run's own, and is there when a run is resumed
            ".*LeafSpec.*",  # Lightning's own use of torch's pytrees
        ):
            warnings.filterwarnings("ignore", message=message)
        yield


def _check_folder(folder: Path, run: Run, *, resume: bool) -> None:
    if not (folder / RUN_FILE).exists():
        return
    if not resume:
        raise wrong_value(
            "out", str(folder), "a folder without a run, or to resume the run it holds"
        )
    if fields := run.differs_from(Run.load(folder)):
        raise wrong_value(
            "out", str(folder), f"the same run to resume; it differs in {', '.join(fields)}"
        )
