"""`teka heads`: where the heads of a trained self-attention network look, in pictures."""

import argparse
from pathlib import Path

from teka.cli.parser import Parser
from teka.errors import wrong_value
from teka.models import SelfAttentionNetwork
from teka.training import TrainedRun, restore
from teka.training.checkpoint import CHECKPOINTS, LAST, load_weights
from teka.training.heads.measure import attention_maps, middle_query
from teka.training.heads.page import head_finding, write_heads
from teka.training.heads.record import HEADS_FILE, load_head_record

IMAGES = 100
FOLDER = "heads"
EXAMPLES = """\
  teka heads runs/digits-self_attention-0
  teka heads runs/cifar10-self_attention-0 --query 3 12 --out pictures
"""


def make_parser() -> Parser:
    """Options of the command."""
    description = (
        "Draw where the heads of a finished run of model self_attention look: centers and ellipses over training, "
        "attention maps of one token, and how near they come to the grid of a convolution's window."
    )
    parser = Parser("teka heads", description, EXAMPLES)
    parser.add_argument("run", type=str, help="Folder of a finished run.")
    parser.add_argument(
        "--query",
        nargs=2,
        type=int,
        metavar=("ROW", "COLUMN"),
        help="The token whose attention maps are drawn, counted from 0 at the top left; the middle by default.",
    )
    parser.add_argument("--out", type=str | None, help=f"Folder for the files, {FOLDER}/ within the run's by default.")
    parser.add_argument("--data_dir", type=str | None, help="Folder with the data set's files, if it has moved.")
    return parser


def main(options: argparse.Namespace, command: str) -> None:
    """Draw, write and print the table."""
    trained = restore(options.run, data_dir=options.data_dir)
    model = trained.model
    if not isinstance(model, SelfAttentionNetwork):
        raise wrong_value("run", options.run, f"a run of model 'self_attention'; its model is {trained.run.model!r}")
    record = load_head_record(trained.folder / HEADS_FILE)
    load_weights(model, trained.folder / CHECKPOINTS / LAST)  # the record's end is not its best epoch
    query = middle_query(model.grid) if options.query is None else (options.query[0], options.query[1])
    images = trained.dataset.test.images[:IMAGES]
    written = write_heads(
        record,
        attention_maps(model, images, query),
        trained.folder / FOLDER if options.out is None else Path(options.out),
        query=query,
        num_images=len(images),
        name=f"{_name(record.position, record.content)}, {trained.dataset.name}",
        settings=_settings(trained, command),
    )
    print(written.terminal)
    print()
    print(head_finding(record))
    print(f"written: {', '.join(map(str, written.files))}")


def _name(position: str, content: str) -> str:
    words = position.replace("_", " ")
    return f"{words} and {content.replace('_', ' ')}" if content else words


def _settings(trained: TrainedRun, command: str) -> list[tuple[str, str]]:
    run, result = trained.run, trained.result
    pairs = {
        "Command": command,
        "Trained by": result.get("command"),
        "Data": trained.dataset.name,
        "Network": f"{run.depth} blocks of dim {run.dim}, heads {run.heads}, {result.get('parameters')} parameters",
        "Training": f"{result.get('epochs')} epochs, {run.optimizer} at {run.learning_rate:g}, seed {run.seed}",
        "Hardware": result.get("hardware"),
        "Date": result.get("date"),
        "Versions": f"teka {result.get('teka')}, PyTorch {result.get('torch')}",
    }
    return [(name, str(value)) for name, value in pairs.items() if value]
