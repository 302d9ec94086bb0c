"""`teka predict`: what a trained model says of pictures."""

import argparse
import json

from teka.cli.parser import Parser
from teka.data.pictures import GROUNDS
from teka.errors import wrong_value
from teka.models import PRETRAINED
from teka.prediction import Prediction, predict
from teka.prediction.predict import DEFAULT_MODEL

EXAMPLES = """\
  teka predict seven.png photo.jpg
  teka predict drawings/*.png --model digits --top 2
  teka predict photo.jpg --ground light --json
  teka predict cat.jpg --model models/pictures
"""


def make_parser() -> Parser:
    """Options of the command."""
    description = (
        "Say what pictures show. Without --model they are handwritten digits, one on each picture, of any size, dark "
        "on light or light on dark."
    )
    parser = Parser("teka predict", description, EXAMPLES)
    parser.add_argument("pictures", nargs="+", type=str, metavar="IMAGE", help="Picture files that Pillow reads.")
    parser.add_argument(
        "--model",
        type=str,
        default=DEFAULT_MODEL,
        help=f"{' or '.join(PRETRAINED)}, which come with teka, or a folder written by teka export.",
    )
    parser.add_argument("--top", type=int, default=3, help="Classes to show of each picture, the most probable first.")
    parser.add_argument(
        "--ground",
        type=str,
        default="auto",
        help=f"What is drawn on: {', '.join(GROUNDS)}; auto tells it from the picture's border.",
    )
    parser.add_argument("--batch_size", type=int, default=256, help="Pictures at a time.")
    parser.add_argument("--json", action="store_true", help="Print JSON instead of a table.")
    return parser


def main(options: argparse.Namespace, command: str) -> None:
    """Predict and print."""
    if options.top < 1:
        raise wrong_value("top", options.top, "at least 1")
    found = predict(options.pictures, options.model, ground=options.ground, batch_size=options.batch_size)
    print(as_json(found, options.model, options.top) if options.json else as_table(found, options.top))


def as_table(predictions: list[Prediction], top: int) -> str:
    """Lines of aligned columns: picture, class, probability, and the next classes.

    Args:
        predictions: What to show.
        top: Classes of each picture.
    """
    rows = [["picture", *["class", "probability"], *["next", ""] * (min(top, len(predictions[0].class_names)) - 1)]]
    for one in predictions:
        pairs = list(zip(one.class_names, one.probabilities, strict=True))[:top]
        rows.append([one.picture, *(cell for name, share in pairs for cell in (name, f"{share:.1%}"))])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    # Names to the left, numbers to the right.
    lines = (
        "  ".join(
            cell.rjust(width) if column and column % 2 == 0 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def as_json(predictions: list[Prediction], model: str, top: int) -> str:
    """A JSON object with the model and, for each picture, its classes and their probabilities.

    Args:
        predictions: What to show.
        model: What it was predicted with.
        top: Classes of each picture.
    """
    shown = [
        {
            "picture": one.picture,
            "classes": [
                {"class": name, "probability": share}
                for name, share in zip(one.class_names[:top], one.probabilities[:top], strict=True)
            ],
        }
        for one in predictions
    ]
    return json.dumps({"model": model, "pictures": shown}, indent=2, ensure_ascii=False)
