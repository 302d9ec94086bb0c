"""`teka train`: train a run, or go on with one."""

import argparse
import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from teka.cli.parser import Parser
from teka.errors import wrong_value
from teka.files import read_yaml
from teka.training import Execution, Run, read_recipe, recipe_names, train
from teka.training.execution import is_first_process
from teka.training.recipe import Recipe
from teka.training.run import DataOptions, ModelOptions

EXAMPLES = """\
  teka train --position rotation --seed 1
  teka train --data mnist --data-dir data --image-size 32 --position absolute --kernel positive
  teka train --recipe teka --model resnet18 --data mnist --data-dir data --image-size 32 --epochs 5
  teka train --data pictures --image-size 32 --out runs/pictures
  teka train --config run.yaml --epochs 50 --out runs/long
  teka train --resume runs/long
  teka train --loggers wandb --out runs/shared
  torchrun --standalone --nproc-per-node 4 --no-python teka train --batch-size 256
"""


class _TrainParser(Parser):
    """A parser whose defaults are the fields of the recipe that is asked for, so that other options go before them."""

    def parse_args(self, *arguments: Any, **options: Any) -> Any:
        """Read the command line."""
        first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
        first.add_argument("--recipe")
        first.add_argument("--config", action="append", default=[])
        with contextlib.suppress(argparse.ArgumentError):  # which the whole parser puts into words
            given = first.parse_known_args(*arguments[:1])[0]
            for file in given.config:
                read_yaml("config", str(file))  # which the whole parser reads without a limit to its nesting
            if given.recipe is not None:
                self.set_defaults(vars(read_recipe(given.recipe)))
        return super().parse_args(*arguments, **options)


def make_parser() -> Parser:
    """Options: the fields of a run and of its execution, a recipe or file of them, and where to write."""
    description = "Train a model on a data set; Ctrl-C leaves a run that --resume goes on with."
    parser = _TrainParser("teka train", description, EXAMPLES)
    parser.add_argument(
        "--recipe",
        type=str | None,
        help=f"How it is trained: {', '.join(recipe_names())}, or a YAML file; other options go before its fields.",
    )
    parser.add_argument("--config", action="config", help="YAML or JSON file with any of the options below.")
    parser.add_argument("--out", type=str | None, help="Folder of the run, named after it under runs/ by default.")
    parser.add_argument(
        "--resume",
        type=str | None,
        help="Folder of a run to go on with, by its own options; those of devices and parts may be others.",
    )
    parser.add_argument(
        "--loggers",
        nargs="+",
        type=str,
        default=[],
        help="Services to log to besides CSV and TensorBoard: wandb, mlflow. Nothing is sent to one that is not named.",
    )
    for part in (DataOptions, ModelOptions, Recipe):
        parser.add_class_arguments(part)
    parser.add_argument("--encoding", type=str | None, help="The older name of --position of self_attention.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of weights, order of images, dropout, projections.")
    parser.add_class_arguments(Execution)
    return parser


def main(options: argparse.Namespace, command: str) -> None:
    """Train, and say where the run is."""
    fields = vars(options)
    out, resume, loggers = fields.pop("out"), fields.pop("resume"), fields.pop("loggers")
    fields.pop("config", None)
    fields.pop("recipe")
    execution = Execution(**{field.name: fields.pop(field.name) for field in dataclasses.fields(Execution)})
    run = Run.from_dict(fields)
    if resume is not None:
        if out is not None or run != Run():
            raise wrong_value("resume", resume, "no option of a run beside it; its own are used")
        out, run = resume, Run.load(Path(resume))
    folder = Path(default_folder(run) if out is None else out)
    try:
        result = train(run, folder, resume=resume is not None, command=command, loggers=loggers, execution=execution)
    except KeyboardInterrupt:
        if is_first_process():
            print(f"interrupted; go on with: teka train --resume {folder}")
        raise
    if is_first_process():
        print(f"{folder}: {_summary(result)}")


def _summary(result: Mapping[str, Any]) -> str:
    accuracy = result["validation_accuracy"]
    held_out = "" if accuracy is None else f", validation accuracy {accuracy:.1%}"
    return f"{result['parameters']:,} parameters, {result['epochs']} epochs, {result['seconds']:.0f} s{held_out}"


def default_folder(run: Run) -> Path:
    """Folder of a run that was given none."""
    data = Path(run.data).resolve().stem  # of a name, or a path
    model = f"{run.position}-{run.kernel}" if run.model == "performer" else run.model
    return Path("runs") / f"{data}-{model}-{run.seed}"
