"""Commands of trained runs: train, evaluate and export."""

import argparse
import contextlib
import dataclasses
from pathlib import Path
from typing import Any

from teka import training
from teka.cli.parser import Option, Parser, command, fields_of, progress_bar
from teka.errors import wrong_value
from teka.files import read_yaml, resolve_path
from teka.models.model_file import WEIGHTS_FILE
from teka.training import Execution, Run, restore
from teka.training.execution import is_first_process
from teka.training.recipe import Recipe, recipe_names
from teka.training.run import DataOptions, ModelOptions
from teka.training.trained_run import EVALUATION_FILE

RECIPE_HELP = f"How it is trained: {', '.join(recipe_names())}, or a YAML file; other options go before its fields."
RUN = Option("run", str, "Folder of a finished run.")
LOGGERS_HELP = "Services to log to besides CSV and TensorBoard: wandb, mlflow. Nothing is sent to one not named."
DATA_DIR = Option("--data_dir", str | None, "Folder with the data set's files, if it has moved.")


class _TrainParser(Parser):
    """A parser whose defaults are the fields of the recipe that is asked for, so that other options go before them."""

    def parse_args(self, *arguments: Any, **options: Any) -> Any:
        first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
        first.add_argument("--recipe")
        first.add_argument("--config", action="append", default=[])
        with contextlib.suppress(argparse.ArgumentError):  # which the whole parser puts into words
            given = first.parse_known_args(*arguments[:1])[0]
            # The whole parser reads files without a limit to their nesting.
            files = [read_yaml("config", str(file)) for file in given.config]
            recipes = [
                file["recipe"]
                for file in files
                if isinstance(file, dict) and file.get("recipe") is not None
            ]
            recipes += [] if given.recipe is None else [given.recipe]
            if recipes:
                self.set_defaults(vars(training.read_recipe(recipes[-1])))
        return super().parse_args(*arguments, **options)


@command(
    Option("--recipe", str | None, RECIPE_HELP),
    lambda parser: parser.add_argument(
        "--config", action="config", help="YAML or JSON file of the options below."
    ),
    Option("--out", str | None, "Folder of the run, named after it under runs/ by default."),
    Option(
        "--resume",
        str | None,
        "Folder of a run to resume by its own options, but for those of devices and parts.",
    ),
    Option("--loggers", str, LOGGERS_HELP, [], nargs="+"),
    fields_of(DataOptions, ModelOptions, Recipe),
    Option("--encoding", str | None, "The older name of --position of self_attention."),
    Option("--seed", int, "Seed of weights, order of images, dropout, projections.", 0),
    fields_of(Execution),
    examples=(
        "teka train --position rotation --seed 1",
        "teka train --data mnist --data-dir data --image-size 32 --position absolute --kernel positive",
        "teka train --recipe teka --data mnist --data-dir data --image-size 32 --epochs 5",
        "teka train --data pictures --image-size 32 --out runs/pictures",
        "teka train --config run.yaml --epochs 50 --out runs/long",
        "teka train --resume runs/long",
        "teka train --loggers wandb --out runs/shared",
        "torchrun --standalone --nproc-per-node 4 --no-python teka train --batch-size 256",
    ),
    parser=_TrainParser,
)
def train(options: argparse.Namespace, command: str) -> None:
    """Train a model on a data set; Ctrl-C leaves a run that --resume continues."""
    fields = vars(options)
    out, resume, loggers = fields.pop("out"), fields.pop("resume"), fields.pop("loggers")
    fields.pop("config", None)
    fields.pop("recipe")
    execution = Execution(
        **{field.name: fields.pop(field.name) for field in dataclasses.fields(Execution)}
    )
    run = Run.from_dict(fields)
    if resume is not None:
        if out is not None or run != Run():
            raise wrong_value("resume", resume, "no option of a run beside it; its own are used")
        out, run = resume, Run.load(Path(resume))
    folder = _default_folder(run) if out is None else Path(out)
    try:
        result: Any = training.train(
            run,
            folder,
            resume=resume is not None,
            command=command,
            loggers=loggers,
            execution=execution,
        )
    except KeyboardInterrupt:
        if is_first_process():
            print(f"interrupted; resume with: teka train --resume {folder}")
        raise
    if is_first_process():
        accuracy = result["validation_accuracy"]
        held_out = "" if accuracy is None else f", validation accuracy {100 * accuracy:.1f} %"
        took = f"{result['epochs']} epochs, {result['seconds']:.0f} s"
        print(f"{folder}: {result['parameters']:,} parameters, {took}{held_out}")


def _default_folder(run: Run) -> Path:
    data = resolve_path("data", run.data).stem  # of a name, or a path
    model = f"{run.position}-{run.kernel}" if run.model == "performer" else run.model
    return Path("runs") / f"{data}-{model}-{run.seed}"


@command(
    RUN,
    DATA_DIR,
    Option("--batch_size", int, "Images at a time.", 256),
    examples=(
        "teka evaluate runs/digits-rotation-squared_relu-0",
        "teka evaluate runs/long --data-dir data",
    ),
)
def evaluate(options: argparse.Namespace, command: str) -> None:
    """Measure a trained run on every test image."""
    trained = restore(options.run, data_dir=options.data_dir)
    with progress_bar() as show:
        shown = {"progress": lambda done, total: show("test images", done, total, "")}
        evaluation = training.evaluate(
            trained, batch_size=options.batch_size, command=command, **shown
        )
    low, high = evaluation.interval
    print(f"{trained.name} on {evaluation.test_images:,} test images of {evaluation.dataset}")
    print(
        f"accuracy  {100 * evaluation.accuracy:.2f} %   (95 % interval {100 * low:.2f} % to {100 * high:.2f} %)"
    )
    for label, accuracy in enumerate(evaluation.accuracy_by_class):
        print(f"class {label:>3}  {100 * accuracy:.2f} %")
    print(f"written: {trained.folder / EVALUATION_FILE}")


@command(
    RUN,
    Option(
        "--out", str, "Folder to write; a model file that stood there is replaced.", required=True
    ),
    Option(
        "--dtype", str, "How weights are stored: float32, or float16, which rounds them.", "float32"
    ),
    DATA_DIR,
    examples=(
        "teka export runs/digits-rotary-squared_relu-0 --out models/digits",
        "teka export runs/mnist --data-dir data --out models/mnist --dtype float16",
    ),
)
def export(options: argparse.Namespace, command: str) -> None:
    """Write the best weights of a finished run as a model file, for teka predict --model and teka.models.load.

    It is a folder with config.json and model.safetensors.
    """
    folder = training.export(
        restore(options.run, data_dir=options.data_dir), options.out, dtype=options.dtype
    )
    size = (folder / WEIGHTS_FILE).stat().st_size
    print(f"written: {folder}, the weights in {size / 1e6:.2f} MB of {options.dtype}")
