from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from teka import data

IMAGES, LABELS = torch.rand(4, 1, 6, 6), torch.tensor([0, 1, 0, 1])
SPLIT = data.Split(IMAGES, LABELS)


def random_shift(**changed: Any) -> object:
    given = {"images": IMAGES, "generator": torch.Generator(), **changed}
    return data.RandomShift(1)(given["images"], given["generator"])


def make_arrays(**changed: Any) -> object:
    return data.from_arrays(**{"images": IMAGES, "labels": LABELS, "axes": "NCHW", **changed})


def make_dataset(**changed: Any) -> object:
    return data.Dataset(
        **{
            "name": "x",
            "train": SPLIT,
            "validation": SPLIT,
            "test": SPLIT,
            "num_classes": 2,
            **changed,
        }
    )


# Tensors whose elements cannot be read as usual.
UNREADABLE = [IMAGES.to_sparse(), IMAGES.to("meta")]
CASES: list[tuple[Callable[..., object], str, list[object]]] = [
    (data.load, "name", [None, 5, b"x", [], np.zeros(3), "a\0b", "", "a" * 300]),
    (lambda **given: data.load("digits", **given), "stream", [0, "no", torch.zeros(0)]),
    (lambda **given: data.load("./pictures", **given), "data_dir", [5, b"x", [], "a\0b"]),
    (
        lambda **given: data.load("digits", **given),
        "seed",
        [None, "1", -1, 2.5, torch.tensor(1), 2**63],
    ),
    (
        lambda **given: data.load("digits", **given),
        "image_size",
        ["abc", {}, 2**63, float("nan"), (8, "8")],
    ),
    (data.download, "name", [None, np.zeros(3), []]),
    (make_arrays, "images", [*UNREADABLE, [[1], [1, 2]], "abc", None]),
    (make_arrays, "labels", [*UNREADABLE, [[1], [1, 2]], "abc", None]),
    (
        lambda **given: data.Split(**{"images": IMAGES, "labels": LABELS, **given}),
        "images",
        [*UNREADABLE, None, "x"],
    ),
    (SPLIT.take, "indices", [None, 1, "a", [0], torch.rand(2)]),
    (make_dataset, "train", [None, 1, IMAGES, (IMAGES, LABELS)]),
    (random_shift, "images", [*UNREADABLE, None, "x"]),
    (random_shift, "generator", [None, 0, "cpu", torch.device("cpu")]),
    (data.HorizontalFlip, "probability", [None, "1", 2, float("nan"), IMAGES, True]),
    (
        lambda **given: data.Normalize(**{"mean": (0.5,), "deviation": (0.5,), **given}),
        "mean",
        [None, 1, "1", ["a"]],
    ),
    (data.Normalize.from_images, "images", [*UNREADABLE, torch.full((2, 1, 3, 3), torch.nan)]),
    (
        lambda **given: data.resize_bilinear(image_size=4, **given),
        "images",
        [*UNREADABLE, None, "x"],
    ),
]


@pytest.mark.parametrize(
    ("call", "argument", "values"),
    CASES,
    ids=[f"{number} {case[1]}" for number, case in enumerate(CASES)],
)
def test_invalid_value_is_an_error_with_the_name_of_the_argument(
    unchecked_annotations: None, call, argument, values
):
    for value in values:
        with pytest.raises(ValueError, match=argument):
            call(**{argument: value})
