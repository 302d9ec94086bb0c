"""`teka demo`: the same small model with three kinds of position, trained, shifted and compared."""

import argparse

from teka.cli.parser import Parser
from teka.cli.shift import compare
from teka.errors import wrong_value
from teka.files import make_directory
from teka.training import Run, ShiftSettings, restore, train

EXAMPLES = """\
  teka demo
  teka demo --seeds 0 1 2 --out runs/demo-three-seeds
"""
# Edges meet, so that rolling an image is a symmetry of the exact models. No image is held out of so few.
BASE = Run.of(
    stem="convolution",
    periodic=True,
    dim=32,
    heads=2,
    depth=3,
    epochs=14,
    batch_size=32,
    validation_size=0,
)
RUNS = (
    BASE.replace(position="absolute", backend="linear"),
    BASE.replace(position="rotary", backend="linear"),
    BASE.replace(position="rotary", kernel="softmax", backend="dense"),
)


def make_parser() -> Parser:
    """Options of the command."""
    description = (
        "Train one small model on scikit-learn's digits with absolute positions, with the default's relative positions "
        "at linear cost, and with softmax as the reference; then shift the test images and compare. Interrupted, it "
        "goes on where it was."
    )
    parser = Parser("teka demo", description, EXAMPLES)
    parser.add_argument("--out", type=str, default="runs/demo", help="Folder for the runs and the report.")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], help="Seeds; every model is trained with each.")
    parser.add_argument("--epochs", type=int, default=BASE.epochs, help="Passes over the training images.")
    return parser


def main(options: argparse.Namespace, command: str) -> None:
    """Train what is missing, compare and write the report."""
    if not options.seeds or len(set(options.seeds)) < len(options.seeds):
        raise wrong_value("seeds", options.seeds, "one seed or more, each once")
    folder = make_directory("out", options.out)
    runs = [run.replace(seed=seed, epochs=options.epochs) for run in RUNS for seed in options.seeds]
    trained = []
    for number, run in enumerate(runs, start=1):
        print(f"[{number}/{len(runs)}] {run.position}, {run.kernel}, seed {run.seed}")
        place = folder / f"{run.position}-{run.kernel}-{run.seed}"
        train(run, place, resume=True, command=command)
        trained.append(restore(place))
    compare(trained, ShiftSettings(max_shift=4), folder, command=command)
