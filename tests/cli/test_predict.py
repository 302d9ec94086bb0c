import json

import numpy as np
import pytest
from PIL import Image

from teka.cli import main
from teka.data import load


@pytest.fixture
def pictures(tmp_path):
    split = load("digits").test
    paths = [str(tmp_path / name) for name in ("one.png", "a longer name.png")]
    for path, image in zip(paths, split.images, strict=False):
        Image.fromarray((255 * (1 - image[0])).byte().numpy()).save(path)
    return paths, split.labels[:2].tolist()


def test_it_prints_an_aligned_table(pictures, capsys):
    paths, labels = pictures
    assert main(["predict", *paths, "--model", "digits", "--top", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["picture", "class", "probability", "next"]
    column = lines[0].index("class")
    for line, path, label in zip(lines[1:], paths, labels, strict=True):
        assert line.startswith(path)
        assert line[column] == str(label)
        assert line.count("%") == 2


def test_it_prints_json(pictures, capsys):
    paths, labels = pictures
    assert main(["predict", *paths, "--model", "digits", "--json", "--top", "4"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["model"] == "digits"
    assert [entry["picture"] for entry in printed["pictures"]] == paths
    for entry, label in zip(printed["pictures"], labels, strict=True):
        assert len(entry["classes"]) == 4
        assert entry["classes"][0]["class"] == str(label)


def test_bad_input_is_one_line(pictures, tmp_path, fails, capsys):
    paths, _ = pictures
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    assert "broken.png is no picture" in fails("predict", *paths, tmp_path / "broken.png", "--model", "digits")
    assert "did you mean 'light'" in fails("predict", *paths, "--ground", "ligt", "--model", "digits")
    assert "top is 0" in fails("predict", *paths, "--top", "0")
    assert "path is 'diigts'" in fails("predict", *paths, "--model", "diigts")
    assert "config.json is missing" in fails("predict", *paths, "--model", tmp_path)
    Image.fromarray(np.zeros((9, 9), dtype=np.uint8)).save(tmp_path / "blank.png")
    assert "blank.png: ink is 'none'" in fails("predict", tmp_path / "blank.png", "--model", "digits")
