import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from teka.data.digits import read_digits


def test_the_parts_hold_every_digit_once():
    train, test = read_digits(8)
    assert (len(train), len(test)) == (1437, 360)
    ours = torch.cat([train.images, test.images]).flatten(1).tolist()
    pixels, _ = load_digits(return_X_y=True)
    assert sorted(ours) == sorted(np.asarray(pixels).astype(int).tolist())


def test_images_keep_their_labels():
    pixels, classes = load_digits(return_X_y=True)
    label_of = {tuple(image): label for image, label in zip(pixels.astype(int).tolist(), classes, strict=True)}
    for part in read_digits(8):
        images = part.images.flatten(1).tolist()
        assert [label_of[tuple(image)] for image in images] == part.labels.tolist()


def test_the_split_is_the_documented_one_and_stays():
    _, classes = load_digits(return_X_y=True)
    train, test = read_digits(8)
    order = np.random.default_rng(0).permutation(1797)
    assert order[:5].tolist() == [360, 1773, 1482, 600, 850]
    assert np.array_equal(torch.cat([train.labels, test.labels]).numpy(), classes[order])


@pytest.mark.parametrize(
    ("canvas_size", "top", "left"), [(8, 0, 0), (9, 0, 0), (16, 4, 4), ((11, 17), 1, 4), ((30, 8), 11, 0)]
)
def test_digits_lie_in_the_middle_of_the_canvas(canvas_size: int | tuple[int, int], top: int, left: int):
    bare = read_digits(8)
    for part, published in zip(read_digits(canvas_size), bare, strict=True):
        size = (canvas_size, canvas_size) if isinstance(canvas_size, int) else canvas_size
        assert tuple(part.images.shape[1:]) == (1, *size)
        assert torch.equal(part.images[:, :, top : top + 8, left : left + 8], published.images)
        assert part.images.sum() == published.images.sum()
        assert torch.equal(part.labels, published.labels)


def test_the_highest_level_is_reached():
    train, _ = read_digits()
    assert train.images.max() == train.highest == 16


@pytest.mark.parametrize("canvas_size", [7, 0, -8, (8, 7), (7, 8), (8,), (8, 8, 8)])
def test_a_canvas_that_cannot_hold_them_is_an_error(canvas_size: int | tuple[int, ...]):
    with pytest.raises(ValueError, match=r"canvas_size is .* each at least 8"):
        read_digits(canvas_size)


def test_without_scikit_learn_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"pip install teka\[train\]"):
        read_digits()
