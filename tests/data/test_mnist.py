import pytest

from teka.data.mnist import FASHION_MNIST, MNIST


@pytest.mark.parametrize("dataset", [MNIST, FASHION_MNIST])
def test_every_file_has_a_sha256_of_its_own(dataset):
    hashes = [hash_ for part in (dataset.train, dataset.test) for hash_ in (part.images_sha256, part.labels_sha256)]
    assert len(set(hashes)) == 4
    assert all(len(bytes.fromhex(hash_)) == 32 for hash_ in hashes)


def test_the_two_data_sets_share_file_names_but_no_content():
    for ours, theirs in ((MNIST.train, FASHION_MNIST.train), (MNIST.test, FASHION_MNIST.test)):
        assert (ours.images, ours.labels) == (theirs.images, theirs.labels)
        assert {ours.images_sha256, ours.labels_sha256}.isdisjoint({theirs.images_sha256, theirs.labels_sha256})


@pytest.mark.parametrize("dataset", [MNIST, FASHION_MNIST])
def test_the_addresses_are_folders_on_the_web(dataset):
    assert dataset.addresses
    assert all(address.startswith(("http://", "https://")) and address.endswith("/") for address in dataset.addresses)


@pytest.mark.parametrize("dataset", [MNIST, FASHION_MNIST])
def test_the_remedy_says_where_the_files_are(dataset):
    assert "http" in dataset.remedy
    assert "data_dir" in dataset.remedy
