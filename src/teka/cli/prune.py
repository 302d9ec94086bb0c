"""`teka prune`: a finished run without its degenerate heads, trained on."""

import argparse
import dataclasses

from teka.cli.parser import Parser
from teka.models.degenerate_heads import CONDITION_NUMBER, LARGEST_PRECISION, heads_table
from teka.training import prune, restore

EXAMPLES = """\
  teka prune runs/cifar10-generalized --out runs/cifar10-pruned
  teka prune runs/digits-generalized --condition-number 100 --epochs 5 --learning-rate 3e-4 --out runs/digits-pruned
"""


def make_parser() -> Parser:
    """Options of the command."""
    description = (
        "Remove the heads of a run of self_attention whose Gaussians have degenerated, train on, and write the folder "
        "of a finished run, for teka evaluate, shift, export and prune."
    )
    parser = Parser("teka prune", description, EXAMPLES)
    parser.add_argument("run", type=str, help="Folder of a finished run with position (generalized_)quadratic.")
    parser.add_argument("--out", type=str, required=True, help="Folder to write, as a whole at the end.")
    parser.add_argument(
        "--largest_precision",
        type=float,
        default=LARGEST_PRECISION,
        help="A head whose largest eigenvalue of the inverse covariance is below this attends to everything.",
    )
    parser.add_argument(
        "--condition_number",
        type=float,
        default=CONDITION_NUMBER,
        help="A head whose largest eigenvalue over its smallest is above this attends to a thin stripe.",
    )
    parser.add_argument("--epochs", type=int | None, help="Epochs of the training on, a third of the run's by default.")
    parser.add_argument(
        "--learning_rate", type=float | None, help="Peak learning rate, a tenth of the run's by default."
    )
    parser.add_argument("--data_dir", type=str | None, help="Folder with the data set's files, if it has moved.")
    return parser


def main(options: argparse.Namespace, command: str) -> None:
    """Prune, train on, and print what it came to."""
    trained = restore(options.run, data_dir=options.data_dir)
    if options.data_dir is not None:
        trained = dataclasses.replace(trained, run=trained.run.replace(data_dir=options.data_dir))
    pruning = prune(
        trained,
        options.out,
        largest_precision=options.largest_precision,
        condition_number=options.condition_number,
        epochs=options.epochs,
        learning_rate=options.learning_rate,
        command=command,
    )
    print(heads_table(pruning.layers))
    print(f"\n{'':<16}  {'parameters':>12}  {'MFLOPs':>10}  {'accuracy':>8}")
    for name, model in (("before", pruning.before), ("pruned", pruning.pruned), ("trained on", pruning.tuned)):
        print(f"{name:<16}  {model.parameters:>12,}  {model.flops / 1e6:>10,.1f}  {model.accuracy:>8.2%}")
    low, high = pruning.evaluation.interval
    print(f"{pruning.evaluation.test_images:,} test images; the last 95 % interval is {low:.2%} to {high:.2%}")
    print(f"written: {options.out}")
