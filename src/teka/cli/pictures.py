"""Commands of pictures: data sets from the web, and what models say of files of one's own."""

import json
from argparse import Namespace
from collections.abc import Sequence

from teka import data
from teka.checks import check_sizes
from teka.cli.parser import Option, command, fields_of, progress_bar
from teka.data.load import check_downloadable
from teka.data.pictures import SUFFIXES
from teka.data.published import PUBLISHED_DATASETS
from teka.errors import wrong_value
from teka.files import expand_user
from teka.prediction.predict import DEFAULT_MODEL
from teka.prediction.predict import predict as predict_classes
from teka.reporting.tables import WIDEST, Table


@command(
    Option("names", str, f"Data sets: {', '.join(PUBLISHED_DATASETS)}.", nargs="+", metavar="NAME"),
    Option("--data_dir", str, "Folder for the files, made if it is missing.", "data"),
    Option("--timeout", float, "Seconds without data after which a connection is stalled.", 30.0),
    Option("--attempts", int, "Number of attempts for each file.", 5),
    examples=(
        "teka download mnist",
        "teka download mnist fashion-mnist cifar10 --data-dir data",
        "teka download cifar10 --timeout 120 --attempts 20",
    ),
)
def download(options: Namespace, command: str) -> None:
    """Fetch published data sets, check them and put them where the other commands find them with --data-dir.

    Whole files that are there are left alone.
    """
    for name in options.names:
        check_downloadable(name)  # a wrong name, before the first is fetched
    fetching = {"timeout": options.timeout, "attempts": options.attempts}
    for name in options.names:
        print(f"{name}: {data.download(name, options.data_dir, **fetching)}")


@command(
    Option("pictures", str, "Picture files that Pillow reads.", nargs="+", metavar="IMAGE"),
    Option("--top", int, "Classes to show of each picture, the most probable first.", 3),
    fields_of(predict_classes, skip=("pictures", "progress")),
    Option("--json", bool, "Print JSON instead of a table."),
    examples=(
        "teka predict seven.png photo.jpg",
        "teka predict drawings/*.png --model digits --top 2",
        "teka predict photo.jpg --ground light --json",
        "teka predict cat.jpg --model models/pictures",
        "teka predict digits seven.png",
    ),
)
def predict(options: Namespace, command: str) -> None:
    """Say what pictures show.

    Without --model they are handwritten digits, one on each picture, of any size, dark on light or light on dark.
    """
    check_sizes({"top": options.top})
    pictures, model = split_model(options.pictures, options.model)
    with progress_bar() as show:
        found = predict_classes(
            pictures,
            model,
            ground=options.ground,
            batch_size=options.batch_size,
            progress=lambda done, total: show("pictures", done, total, ""),
        )
    ranked = [
        list(zip(one.class_names, one.probabilities, strict=True))[: options.top] for one in found
    ]
    if options.json:
        entries = [
            {
                "picture": one.picture,
                "classes": [{"class": name, "probability": share} for name, share in pairs],
            }
            for one, pairs in zip(found, ranked, strict=True)
        ]
        print(json.dumps({"model": model, "pictures": entries}, indent=2, ensure_ascii=False))
        return
    rows = tuple(
        (one.picture, *(cell for name, share in pairs for cell in (name, f"{100 * share:.1f} %")))
        for one, pairs in zip(found, ranked, strict=True)
    )
    heads = ("picture", "class", "probability", *("next", "") * (len(ranked[0]) - 1))
    print(Table("", heads, rows, words=("class", "next")).plain(WIDEST))


def split_model(words: Sequence[str], model: str) -> tuple[Sequence[str], str]:
    """Return the pictures and the model, which may be the first of the words if no other model was chosen."""
    first = words[0]
    path = expand_user(first)
    is_picture = path.is_file() or path.suffix.lower() in SUFFIXES
    if model != DEFAULT_MODEL or is_picture:
        return words, model
    if len(words) == 1:
        raise wrong_value(
            "the picture", None, f"a file after the model: teka predict {first} PICTURE"
        )
    return words[1:], first
