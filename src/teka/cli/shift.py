"""Commands `shift` and `demo`: accuracy of trained runs at every shift."""

import textwrap
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from teka.cli.parser import Option, command, fields_of, progress_bar
from teka.cli.runs import DATA_DIR
from teka.errors import wrong_value
from teka.files import make_directory, resolve_path
from teka.training import Run, TrainedRun, restore, train
from teka.training.shift.measure import (
    ShiftSettings,
    check_same_data,
    make_examples,
    make_report,
    measure,
)
from teka.training.shift.page import write_report
from teka.training.shift.report import WIDTH, finding, plain_table
from teka.training.trained_run import model_name

# Edges meet, so that rolling an image is a symmetry of the exact models. No image is held out of so few.
BASE = Run.of(
    stem="convolution",
    periodic=True,
    dim=32,
    heads=2,
    depth=3,
    epochs=11,
    batch_size=32,
    validation_size=0,
)
DEMO_RUNS = (
    BASE.replace(position="absolute", backend="linear"),
    BASE.replace(position="rotary", backend="linear"),
    BASE.replace(position="rotary", kernel="softmax", backend="dense"),
    # A quarter of the tokens, from halvings that move with the image and from an ordinary stride.
    BASE.replace(position="rotary", backend="linear", depth=2, stem="polyphase", patch_size=2),
    BASE.replace(position="rotary", backend="linear", depth=2, stem="strided", patch_size=2),
)


@command(
    Option("runs", str, "Folders of finished runs on the same data.", nargs="+"),
    fields_of(ShiftSettings),
    DATA_DIR,
    Option("--out", str, "Folder for the report.", "runs/shift"),
    examples=(
        "teka shift runs/digits-absolute-squared_relu-0 runs/digits-rotation-squared_relu-0",
        "teka shift runs/mnist-* --max-shift 8 --selection figure1 --out runs/figure1",
        "teka shift runs/mnist-* --mode canvas --max-shift 6",
    ),
)
def shift(options: Namespace, command: str) -> None:
    """Compare trained runs on their test images, shifted along both axes."""
    settings = ShiftSettings(options.max_shift, options.mode, options.selection, options.batch_size)
    folders = [Path(run) for run in options.runs]
    if len({resolve_path("runs", folder) for folder in folders}) < len(folders):
        raise wrong_value("runs", options.runs, "each folder once")
    trained = [restore(folder, data_dir=options.data_dir) for folder in folders]
    _compare(trained, settings, make_directory("out", options.out), command)


def _compare(
    trained: Sequence[TrainedRun], settings: ShiftSettings, folder: Path, command: str
) -> None:
    check_same_data(trained)
    with progress_bar() as show:
        responses = [
            measure(
                run,
                settings,
                lambda done, total, stage=f"shift {run.name}": show(stage, done, total, ""),
            )
            for run in trained
        ]
    report = make_report(trained, responses, settings, command)
    written = write_report(report, make_examples(trained, responses, settings), folder)
    print(f"{plain_table(report)}\n\n{textwrap.fill(finding(report), WIDTH)}")
    print(f"written: {', '.join(map(str, written))}")


@command(
    Option("--out", str, "Folder for the runs and the report.", "runs/demo"),
    Option("--seeds", int, "Seeds; every model is trained with each.", [0], nargs="+"),
    Option("--epochs", int, "Passes over the training images.", BASE.epochs),
    examples=("teka demo", "teka demo --seeds 0 1 2 --out runs/demo-three-seeds"),
)
def demo(options: Namespace, command: str) -> None:
    """Train five small models on scikit-learn's digits, shift the test images and compare.

    They know absolute positions, the default's relative ones at linear cost, and these with softmax; two more have a
    quarter of the tokens, by polyphase halvings and by an ordinary stride. The same command resumes.
    """
    if not options.seeds or len(set(options.seeds)) < len(options.seeds):
        raise wrong_value("seeds", options.seeds, "one seed or more, each once")
    folder = make_directory("out", options.out)
    runs = [
        run.replace(seed=seed, epochs=options.epochs) for run in DEMO_RUNS for seed in options.seeds
    ]
    trained = []
    for number, run in enumerate(runs, start=1):
        name = model_name(run)
        print(f"[{number}/{len(runs)}] {name}, seed {run.seed}")
        place = folder / f"{name.replace(', ', '-')}-{run.seed}"
        train(run, place, resume=True, command=command)
        trained.append(restore(place))
    _compare(trained, ShiftSettings(max_shift=4, mode="lossless"), folder, command)
