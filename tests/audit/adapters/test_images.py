import numpy as np
import pytest
import torch
from PIL import Image

from teka.audit.adapters import Preprocessing
from teka.audit.adapters.images import load_images, read_pictures
from teka.data import load, resize_bilinear


def test_they_are_test_images_in_their_order_and_fewer_are_part_of_more():
    every = load_images("digits", Preprocessing())
    assert torch.equal(every.images, load("digits").test.images)
    assert (every.num_available, every.num_classes, every.image_size) == (360, 10, (16, 16))
    some, fewer = (load_images("digits", Preprocessing(), num_images=number, seed=3) for number in (50, 20))
    rows = [tuple(image.flatten().tolist()) for image in some.images]
    found = [rows.index(tuple(image.flatten().tolist())) for image in fewer.images]
    assert found == sorted(found)
    assert some.labels[found].tolist() == fewer.labels.tolist()
    assert not torch.equal(fewer.images, load_images("digits", Preprocessing(), num_images=20, seed=4).images)


def test_they_get_the_models_channels_and_size():
    found = load_images("digits", Preprocessing(3, (11, 13)), image_size=12, num_images=5)
    assert tuple(found.images.shape) == (5, 3, 11, 13)
    assert found.image_size == (12, 12)


def test_arrays_are_read_and_bytes_resized_in_whole_levels(tmp_path):
    levels = np.random.default_rng(0).integers(0, 256, (10, 9, 7, 3), dtype=np.uint8)
    labels = np.arange(10) % 4
    np.savez(tmp_path / "data.npz", images=levels, labels=labels, test_images=levels, test_labels=labels)
    found = load_images("data.npz", Preprocessing(), data_dir=tmp_path, image_size=5)
    expected = resize_bilinear(torch.from_numpy(levels).permute(0, 3, 1, 2), 5)
    assert torch.equal(found.images, expected.float() / 255)
    assert (found.labels.tolist(), found.class_names, found.num_classes) == (labels.tolist(), None, 4)


def test_of_fewer_images_than_asked_for_all_are_taken():
    assert len(load_images("digits", Preprocessing(), num_images=361).images) == 360


@pytest.mark.parametrize(("number", "seed", "said"), [(0, 0, "images"), (5, -1, "seed")])
def test_no_images_and_a_negative_seed_are_refused(number, seed, said):
    with pytest.raises(ValueError, match=f"{said} is"):
        load_images("digits", Preprocessing(), num_images=number, seed=seed)


def test_data_that_are_not_there_are_named():
    with pytest.raises(ValueError, match="did you mean 'digits'"):
        load_images("digitz", Preprocessing())


def write_pictures(folder, names, *, sizes=((9, 7),), colour=True):
    random = np.random.default_rng(1)
    for label, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for number in range(4 + label):
            height, width = sizes[number % len(sizes)]
            shape = (height, width, 3) if colour else (height, width)
            levels = random.integers(0, 256, shape, dtype=np.uint8)
            Image.fromarray(levels).save(folder / name / f"{number}.png")


@pytest.mark.parametrize("parted", [False, True])
@pytest.mark.parametrize("colour", [False, True])
def test_the_pictures_are_those_of_the_loaded_data_set(tmp_path, parted, colour):
    for part in ("train", "test") if parted else (".",):
        write_pictures(tmp_path / part, ("bee", "ant"), colour=colour)
    found, expected = load_images(str(tmp_path), Preprocessing()), load(str(tmp_path)).test
    assert torch.equal(found.images, expected.images)
    assert torch.equal(found.labels, expected.labels)
    assert (found.class_names, found.image_size, found.num_available) == (("ant", "bee"), (9, 7), len(expected))


def test_each_picture_is_resized_from_its_own_size(tmp_path):
    write_pictures(tmp_path, ("a", "b"), sizes=((9, 7), (20, 30), (16, 16)))
    transform = Preprocessing(3, 6, crop=(5, 5))
    images, size = read_pictures(sorted(tmp_path.rglob("*.png")), transform)
    assert tuple(images.shape[1:]) == (3, 5, 5)
    assert size is None
    wide = torch.from_numpy(np.array(Image.open(tmp_path / "a" / "1.png"))).permute(2, 0, 1)[None].float() / 255
    torch.testing.assert_close(images[1:2], transform.place(wide))


def test_several_sizes_that_nothing_resizes_are_an_error(tmp_path):
    write_pictures(tmp_path, ("a", "b"), sizes=((9, 7), (5, 6)))
    files = sorted(tmp_path.rglob("*.png"))
    with pytest.raises(ValueError, match=r"size of .*1\.png is \(5, 6\)"):
        read_pictures(files, Preprocessing())
    assert read_pictures(files, Preprocessing(), 4)[1] == (4, 4)


def test_what_is_no_folder_of_classes_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="at least two sub-folders of pictures"):
        load_images(str(tmp_path), Preprocessing())
