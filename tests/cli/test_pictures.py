import json

import numpy as np
import pytest
from PIL import Image

from teka import data
from teka.cli import main


def test_download_prints_the_folders_of_the_files(tmp_path, monkeypatch, capsys):
    requested = []

    def download(name, data_dir):
        requested.append((name, data_dir))
        return tmp_path / name

    monkeypatch.setattr(data, "download", download)
    assert main(["download", "mnist", "cifar10", "--data-dir", str(tmp_path)]) == 0
    assert requested == [("mnist", str(tmp_path)), ("cifar10", str(tmp_path))]
    lines = capsys.readouterr().out.splitlines()
    assert lines[1::2] == [f"mnist: {tmp_path / 'mnist'}", f"cifar10: {tmp_path / 'cifar10'}"]


def test_unknown_data_set_is_an_error_before_any_download(tmp_path, monkeypatch, fails):
    requested = []
    monkeypatch.setattr(data, "download", lambda *arguments, **_: requested.append(arguments))
    assert "Did you mean 'cifar10'" in fails("download", "mnist", "cifar1", "--data-dir", tmp_path)
    assert requested == []


def test_failed_download_is_an_error_of_one_line(tmp_path, monkeypatch, capsys):
    def download(*_, **__):
        raise ConnectionError("train-images could not be downloaded")

    monkeypatch.setattr(data, "download", download)
    assert main(["download", "mnist", "--data-dir", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "teka download: error: train-images could not be downloaded\n"


def test_missing_files_are_an_error_with_the_download_command(tmp_path, fails):
    assert f"teka download mnist --data-dir {tmp_path}" in fails(
        "train", "--data", "mnist", "--data-dir", tmp_path, "--out", tmp_path / "r"
    )


@pytest.fixture
def pictures(tmp_path):
    split = data.load("digits").test
    paths = [str(tmp_path / name) for name in ("one.png", "a longer name.png")]
    for path, image in zip(paths, split.images, strict=False):
        Image.fromarray((255 * (1 - image[0])).byte().numpy()).save(path)
    return paths, split.labels[:2].tolist()


def test_predict_prints_an_aligned_table(pictures, capsys):
    paths, labels = pictures
    assert main(["predict", *paths, "--model", "digits", "--top", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["picture", "class", "probability", "next"]
    column = lines[0].index("class")
    for line, path, label in zip(lines[2:], paths, labels, strict=True):
        assert line.startswith(path)
        assert line[column] == str(label)
        assert line.count("%") == 2


def test_predict_prints_json(pictures, capsys):
    paths, labels = pictures
    assert main(["predict", *paths, "--model", "digits", "--json", "--top", "4"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["model"] == "digits"
    assert [entry["picture"] for entry in printed["pictures"]] == paths
    for entry, label in zip(printed["pictures"], labels, strict=True):
        assert len(entry["classes"]) == 4
        assert entry["classes"][0]["class"] == str(label)


def test_model_can_be_given_before_the_pictures(pictures, tmp_path, capsys, fails):
    paths, _ = pictures
    assert main(["predict", "digits", *paths, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert main(["predict", *paths, "--model", "digits", "--json"]) == 0
    assert printed == json.loads(capsys.readouterr().out)
    assert "teka predict digits picture.png" in fails("predict", "digits")
    assert f"pass its files, such as {tmp_path}/*." in fails("predict", "digits", tmp_path)
    assert f"teka predict {tmp_path}/* if it is a folder" in fails("predict", tmp_path)
    assert "model must be one of digits" in fails("predict", "google/vit", *paths)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    assert "teka export" in fails("predict", tmp_path / "run", *paths)
    assert "picture must be an existing file, got 'none.png'" in fails("predict", "none.png")


def test_bad_pictures_and_options_are_errors_of_one_line(pictures, tmp_path, fails, capsys):
    paths, _ = pictures
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    assert r"broken.png must be a readable picture" in fails(
        "predict", *paths, tmp_path / "broken.png", "--model", "digits"
    )
    assert "Did you mean 'light'" in fails(
        "predict", *paths, "--ground", "ligt", "--model", "digits"
    )
    assert "top must be at least 1, got 0" in fails("predict", *paths, "--top", "0")
    assert "got 'diigts'" in fails("predict", *paths, "--model", "diigts")
    assert "config.json must be a file with a JSON object, got no file" in fails(
        "predict", *paths, "--model", tmp_path
    )
    Image.fromarray(np.zeros((9, 9), dtype=np.uint8)).save(tmp_path / "blank.png")
    assert "got none" in fails("predict", tmp_path / "blank.png", "--model", "digits")
