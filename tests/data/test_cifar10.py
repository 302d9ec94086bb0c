import math

from teka.data.cifar10 import CIFAR10


def test_it_has_the_published_numbers_of_images():
    assert len(CIFAR10.train) * CIFAR10.images_per_file == 50_000
    assert len(CIFAR10.test) * CIFAR10.images_per_file == 10_000


def test_each_file_has_the_published_size():
    assert CIFAR10.images_per_file * (1 + math.prod(CIFAR10.image_shape)) == 30_730_000


def test_no_file_is_a_pickle():
    assert all(file.endswith(".bin") for file in CIFAR10.train + CIFAR10.test)


def test_the_archive_is_the_binary_version_with_the_published_md5():
    assert CIFAR10.archive.addresses == ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",)
    assert CIFAR10.archive.known_hash == "md5:c32a1d4ab5d03f1284b67883e8d87530"


def test_the_remedy_says_where_the_files_are():
    assert "http" in CIFAR10.remedy
    assert "data_dir" in CIFAR10.remedy
