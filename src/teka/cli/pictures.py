"""The commands `download` and `predict`."""

import itertools
import json
import shlex
from typing import Annotated

from cyclopts import Parameter

from teka import data, prediction
from teka.checks import check_name, check_sizes
from teka.cli.progress import ProgressDisplay
from teka.data.pictures import SUFFIXES
from teka.data.published import PUBLISHED_DATASETS
from teka.errors import wrong_argument
from teka.files import expand_user
from teka.prediction import DEFAULT_MODEL
from teka.reporting.tables import WIDEST, Table


def download(names: list[str], /, *, data_dir: str = "data") -> None:
    """Download published data sets and verify that their files are complete.

    Pass the same folder to other commands with `--data-dir`. Complete files are not downloaded
    again.

    For example:

        teka download mnist
        teka download mnist fashion-mnist cifar10 --data-dir data

    Args:
        names: Data sets: mnist, fashion-mnist, cifar10.
        data_dir: Folder for the files. A missing folder is created.
    """
    for name in names:
        check_name("names", name, PUBLISHED_DATASETS)  # before the first download
    for name in names:
        print(f"downloading {name} to {data_dir}", flush=True)
        print(f"{name}: {data.download(name, data_dir)}", flush=True)


def predict(
    pictures: list[str],
    /,
    *,
    model: str = DEFAULT_MODEL,
    top: int = 3,
    ground: str = "auto",
    batch_size: int = 256,
    json_output: Annotated[bool, Parameter(name="--json")] = False,
) -> None:
    """Classify picture files with a trained model.

    The default model reads handwritten digits of any size, dark on light or light on dark. The
    model can also be the first argument, before the pictures.

    For example:

        teka predict seven.png photo.jpg
        teka predict drawings/*.png --model digits --top 2
        teka predict models/pictures cat.jpg --json

    Args:
        pictures: Picture files.
        model: Name of a packaged model (mnist, fashion-mnist, cifar10 or digits), or a folder that
            `teka export` has written.
        top: Number of most probable classes to show for each picture.
        ground: Background of a drawing: dark, light, or auto, which derives it from the border.
        batch_size: Number of pictures per batch.
        json_output: Print JSON instead of a table.
    """
    check_sizes({"top": top})
    pictures, model = _split_pictures_and_model(pictures, model)
    with ProgressDisplay() as display:
        predictions = prediction.predict(
            pictures,
            model,
            ground=ground,
            batch_size=batch_size,
            progress=lambda done, total: display.show("pictures", done, total),
        )
    entries = []
    rows = []
    for answer in predictions:
        classes = []
        row = [answer.picture]
        ranked = zip(answer.class_names, answer.probabilities, strict=True)
        for name, probability in itertools.islice(ranked, top):
            classes.append({"class": name, "probability": probability})
            row += [name, f"{100 * probability:.1f} %"]
        entries.append({"picture": answer.picture, "classes": classes})
        rows.append(tuple(row))
    if json_output:
        print(json.dumps({"model": model, "pictures": entries}, indent=2, ensure_ascii=False))
        return
    head = ("picture", "class", "probability", *("next", "") * (len(rows[0]) // 2 - 1))
    print(Table(head, tuple(rows), words=("class", "next")).to_text(WIDEST))


def _split_pictures_and_model(arguments: list[str], model: str) -> tuple[list[str], str]:
    """Split the positional arguments of `teka predict` into picture files and a model name.

    The first argument is the model if it is not a picture and `--model` has not been passed.
    """
    first = arguments[0]
    path = expand_user(first)
    is_picture = path.is_file() or path.suffix.lower() in SUFFIXES
    if model != DEFAULT_MODEL or is_picture:
        return arguments, model
    if len(arguments) == 1:
        word = shlex.quote(first)
        raise wrong_argument(
            "the pictures",
            "none",
            "given as files",
            f"For example: teka predict {word} picture.png if {word} is a model, or "
            f"teka predict {word}/* if it is a folder of pictures.",
        )
    return arguments[1:], first
