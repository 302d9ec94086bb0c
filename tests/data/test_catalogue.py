import math
import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from teka.data.catalogue import CIFAR10, FASHION_MNIST, MNIST, PUBLISHED_DATASETS, read_digits


def test_the_parts_hold_every_digit_once():
    train, test = read_digits(8)
    assert (len(train), len(test)) == (1437, 360)
    ours = torch.cat([train.images, test.images]).flatten(1).tolist()
    pixels, _ = load_digits(return_X_y=True)
    assert sorted(ours) == sorted(np.asarray(pixels).astype(int).tolist())


def test_images_keep_their_labels():
    pixels, classes = load_digits(return_X_y=True)
    label_of = {
        tuple(image): label
        for image, label in zip(pixels.astype(int).tolist(), classes, strict=True)
    }
    for part in read_digits(8):
        images = part.images.flatten(1).tolist()
        assert [label_of[tuple(image)] for image in images] == part.labels.tolist()


def test_the_split_is_the_documented_one_and_stays():
    _, classes = load_digits(return_X_y=True)
    train, test = read_digits(8)
    order = np.random.default_rng(0).permutation(1797)
    assert order[:5].tolist() == [360, 1773, 1482, 600, 850]
    assert np.array_equal(torch.cat([train.labels, test.labels]).numpy(), classes[order])


def test_digits_lie_in_the_middle_of_the_canvas():
    for canvas_size, top, left in [
        (8, 0, 0),
        (9, 0, 0),
        (16, 4, 4),
        ((11, 17), 1, 4),
        ((30, 8), 11, 0),
    ]:
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


def test_a_canvas_that_cannot_hold_them_is_an_error():
    for canvas_size in [7, 0, -8, (8, 7), (7, 8), (8,), (8, 8, 8)]:
        with pytest.raises(ValueError, match=r"canvas_size must be .* each at least 8"):
            read_digits(canvas_size)


def test_without_scikit_learn_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"pip install teka\[train\]"):
        read_digits()


def test_every_idx_file_has_a_sha256_of_its_own():
    hashes = [*MNIST.hashes.values(), *FASHION_MNIST.hashes.values()]
    assert len(set(hashes)) == 8
    assert all(len(bytes.fromhex(one)) == 32 for one in hashes)
    assert list(MNIST.hashes) == list(FASHION_MNIST.hashes)
    for address in (*MNIST.addresses, *FASHION_MNIST.addresses):
        assert address.startswith(("http://", "https://"))
        assert address.endswith("/")


def test_cifar10_is_the_published_binary_version_and_no_pickle():
    assert len(CIFAR10.train) * CIFAR10.images_per_file == 50_000
    assert len(CIFAR10.test) * CIFAR10.images_per_file == 10_000
    assert (
        CIFAR10.file_size
        == CIFAR10.images_per_file * (1 + math.prod(CIFAR10.image_shape))
        == 30_730_000
    )
    assert all(file.endswith(".bin") for file in CIFAR10.files)
    assert CIFAR10.archive.addresses == ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",)
    assert CIFAR10.archive.known_hash == "md5:c32a1d4ab5d03f1284b67883e8d87530"


def test_every_published_data_set_has_ten_names_and_a_way_to_its_files_by_hand():
    for name in PUBLISHED_DATASETS:
        assert len(set(PUBLISHED_DATASETS[name].class_names)) == 10
        assert "http" in PUBLISHED_DATASETS[name].remedy
        assert "data_dir" in PUBLISHED_DATASETS[name].remedy
