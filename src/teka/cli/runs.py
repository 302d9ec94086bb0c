"""The commands `train`, `evaluate` and `export`."""

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter, Token
from cyclopts.argument import ArgumentCollection

from teka import training
from teka.cli.app import CommandLine
from teka.cli.model_options import build_model_options_class
from teka.cli.progress import ProgressDisplay
from teka.errors import unknown_name_error, wrong_value
from teka.files import read_yaml, resolve_path
from teka.models.model_file import WEIGHTS_FILE
from teka.reporting.formatting import format_count
from teka.reporting.tables import WIDEST, Table
from teka.training import Execution, Run
from teka.training.recipe import Recipe, list_recipes, read_recipe
from teka.training.run import EVALUATION_FILE, RUN_FILE, DataOptions

ModelOptions: Any = build_model_options_class()
# Options that can be given together with --resume.
RESUME_OPTIONS = {"--resume", "--config", "--loggers"}
RESUME_OPTIONS |= {f"--{name.replace('_', '-')}" for name in Execution.__dataclass_fields__}


def apply_option_files(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Set options that are missing on the command line to the values in option files.

    The files are those of `--config` and `--recipe`. Values from `--config` take precedence.

    Raises:
        ValueError: A file contains an unknown option, or `--resume` is combined with an option that
            would change the run.
    """
    # A file does not name further files.
    options = {
        name.strip("-").replace("-", "_"): argument
        for argument in arguments
        for name in argument.names
        if name != "--config"
    }

    def set_options(content: object, file: str) -> None:
        if not isinstance(content, dict):
            raise wrong_value("config", file, "a file of options and their values")
        for name, value in content.items():
            argument = options.get(str(name).replace("-", "_"))
            if argument is None:
                raise unknown_name_error(f"option in {file}", name, options)
            word = value if isinstance(value, str) else json.dumps(value, default=str)
            token = Token(keyword=argument.name, value=word)
            if value is None:
                token = token.evolve(implicit_value=None)
            if not argument.tokens:
                argument.append(token)

    for token in reversed(arguments["--config"].tokens):  # the last file takes precedence
        set_options(read_yaml("config", token.value), token.value)
    data = arguments["--data"].tokens
    has_own_recipe = data and data[-1].value in list_recipes()
    if recipe := arguments["--recipe"].tokens or (data if has_own_recipe else []):
        set_options(read_recipe(recipe[-1].value), recipe[-1].value)
    given = {argument.name for argument in arguments if argument.tokens}
    if "--resume" in given and not given <= RESUME_OPTIONS:
        raise wrong_value(
            "resume",
            arguments["--resume"].tokens[0].value,
            f"used without {', '.join(sorted(given - RESUME_OPTIONS))}",
            "A resumed run keeps its options.",
        )


train_app = App(name="train", config=apply_option_files)


@train_app.default
def train(
    *,
    out: str | None = None,
    resume: str | None = None,
    recipe: str | None = None,
    config: tuple[str, ...] = (),
    loggers: tuple[str, ...] = (),
    seed: int = 0,
    images: Annotated[DataOptions, Parameter(name="*", group="Data")] = DataOptions(),
    network: Annotated[  # the class is made at run time
        ModelOptions,  # pyright: ignore[reportInvalidTypeForm]
        Parameter(name="*", group="Model"),
    ] = ModelOptions(),
    training_recipe: Annotated[Recipe, Parameter(name="*", group="Training")] = Recipe(),
    execution: Annotated[Execution, Parameter(name="*", group="Devices")] = Execution(),
    command: CommandLine,
) -> None:
    """Train a model on a data set.

    Ctrl-C stops the run, and `--resume` continues it. With `--data mnist`, the default options
    reach 99 % accuracy in minutes on two cores.

    For example:

        teka train --position rotation --seed 1
        teka train --data mnist --data-dir data
        teka train --recipe teka --data pictures --image-size 32 --out runs/pictures
        teka train --config run.yaml --epochs 50 --out runs/long
        teka train --resume runs/long
        torchrun --standalone --nproc-per-node 4 --no-python teka train --batch-size 256

    Args:
        out: Folder of the run. The default is runs/DATA-MODEL-SEED.
        resume: Folder of a run to continue. Its options are kept; only device options and loggers
            can be changed.
        recipe: Default values for the model and training options: cordonnier2020, horn2021,
            horn2021-text, mnist, teka, or a YAML file. If --recipe is missing, the recipe with the
            name of the data set is used, if it exists.
        config: YAML or JSON file with values for any of these options. The command line overrides
            the file, and the file overrides the recipe. Of several files, the last one takes
            precedence.
        loggers: Additional loggers, besides CSV and TensorBoard: wandb, mlflow.
        seed: Seed of the initial weights, the order of the images, dropout and random projections.
    """
    from lightning.pytorch.utilities import rank_zero_only  # takes seconds to import

    chosen = {name: value for name, value in vars(network).items() if value is not None}
    run = Run.from_dict({**vars(images), **chosen, **vars(training_recipe), "seed": seed})
    if resume is not None:
        run = Run.load(Path(resume))
    data = resolve_path("data", run.data).stem  # of a name or a path
    name = f"{run.position}-{run.kernel}" if run.model == "performer" else run.model
    folder = Path(resume or out or f"runs/{data}-{name}-{run.seed}")
    print_once = rank_zero_only(print)  # several processes may run this command
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
        if (folder / RUN_FILE).is_file():  # the training has begun
            print_once(f"interrupted; resume with: teka train --resume {shlex.quote(str(folder))}")
        raise
    epochs = format_count(result["epochs"], "epoch")
    summary = f"{folder}: {result['parameters']:,} parameters, {epochs}, {result['seconds']:.0f} s"
    if result["validation_accuracy"] is not None:
        summary += f", validation accuracy {100 * result['validation_accuracy']:.1f} %"
    print_once(summary)


def evaluate(
    run: str, /, *, data_dir: str | None = None, batch_size: int = 256, command: CommandLine
) -> None:
    """Measure the accuracy of a trained run on every test image.

    For example:

        teka evaluate runs/digits-rotary-squared_relu-0
        teka evaluate runs/long --data-dir data

    Args:
        run: Folder of a finished run.
        data_dir: Folder with the files of the data set, if it has moved.
        batch_size: Number of images per batch.
    """
    trained = training.restore(run, data_dir=data_dir)
    print(f"evaluating {trained.name} on the test images of {trained.dataset.name}")
    with ProgressDisplay() as display:
        evaluation = training.evaluate(
            trained,
            batch_size=batch_size,
            command=command,
            progress=lambda done, total: display.show("test images", done, total),
        )
    low, high = evaluation.interval
    print(
        f"accuracy  {100 * evaluation.accuracy:.2f} % of "
        f"{format_count(evaluation.test_images, 'image')}   "
        f"(95 % interval {100 * low:.2f} % to {100 * high:.2f} %)"
    )
    shares = [
        "no test images" if accuracy is None else f"{100 * accuracy:.2f} %"
        for accuracy in evaluation.accuracy_by_class
    ]
    names = trained.dataset.class_names or map(str, range(len(shares)))
    print(Table(("class", "accuracy"), tuple(zip(names, shares, strict=True))).to_text(WIDEST))
    print(f"written: {trained.folder / EVALUATION_FILE}")


def export(run: str, /, *, out: str, dtype: str = "float32", data_dir: str | None = None) -> None:
    """Write the best weights of a finished run as a model file.

    A model file is a folder with config.json and model.safetensors. Load it with
    `teka predict --model` or `teka.models.load`.

    For example:

        teka export runs/digits-rotary-squared_relu-0 --out models/digits
        teka export runs/mnist --data-dir data --out models/mnist --dtype float16

    Args:
        run: Folder of a finished run.
        out: Folder of the model file. An existing model file is replaced.
        dtype: Data type of the stored weights: float32, or float16, which rounds the weights.
        data_dir: Folder with the files of the data set, if it has moved.
    """
    folder = training.export(training.restore(run, data_dir=data_dir), out, dtype=dtype)
    size = (folder / WEIGHTS_FILE).stat().st_size
    print(f"written: {folder}, the weights in {size / 1e6:.2f} MB of {dtype}")
