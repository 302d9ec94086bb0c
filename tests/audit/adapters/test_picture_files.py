import numpy as np
import pytest
import torch
from PIL import Image

from teka.audit.adapters import Preprocessing
from teka.audit.adapters.picture_files import find_pictures, read_pictures
from teka.data import load


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
    found = find_pictures(str(tmp_path))
    assert found is not None
    images, size = read_pictures(found.files, Preprocessing())
    expected = load(str(tmp_path)).test
    assert torch.equal(images, expected.images)
    assert list(found.labels) == expected.labels.tolist()
    assert (found.class_names, size) == (("ant", "bee"), (9, 7))


def test_each_picture_is_resized_from_its_own_size(tmp_path):
    write_pictures(tmp_path, ("a", "b"), sizes=((9, 7), (20, 30), (16, 16)))
    found = find_pictures(str(tmp_path.name), tmp_path.parent)
    assert found is not None
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
    assert find_pictures(str(tmp_path / "images.npz")) is None
    with pytest.raises(ValueError, match="two or more"):
        find_pictures(str(tmp_path))
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with pytest.raises(ValueError, match="at least one"):
        find_pictures(str(tmp_path))
    for part, name in (("train", "a"), ("train", "b"), ("test", "c")):
        (tmp_path / "parted" / part / name).mkdir(parents=True)
        (tmp_path / "parted" / part / name / "x.png").touch()
    with pytest.raises(ValueError, match=r"classes of .*'c'"):
        find_pictures(str(tmp_path / "parted"))
