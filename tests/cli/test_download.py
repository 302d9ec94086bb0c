import teka.cli.download
from teka.cli import main


def test_it_says_where_the_files_are(tmp_path, monkeypatch, capsys):
    asked = []

    def download(name, data_dir, *, fetcher):
        asked.append((name, data_dir, fetcher.timeout, fetcher.attempts))
        return tmp_path / name

    monkeypatch.setattr(teka.cli.download, "download", download)
    arguments = ["mnist", "cifar10", "--data-dir", str(tmp_path), "--timeout", "3", "--attempts", "7"]
    assert main(["download", *arguments]) == 0
    assert asked == [(name, str(tmp_path), 3.0, 7) for name in ("mnist", "cifar10")]
    assert capsys.readouterr().out == f"mnist: {tmp_path / 'mnist'}\ncifar10: {tmp_path / 'cifar10'}\n"


def test_a_wrong_name_is_an_error_before_anything_is_fetched(tmp_path, monkeypatch, fails):
    asked = []
    monkeypatch.setattr(teka.cli.download, "download", lambda *given, **_: asked.append(given))
    assert "did you mean 'cifar10'" in fails("download", "mnist", "cifar1", "--data-dir", tmp_path)
    assert asked == []


def test_a_download_that_fails_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys):
    def download(*_, **__):
        raise ConnectionError("train-images could not be downloaded")

    monkeypatch.setattr(teka.cli.download, "download", download)
    assert main(["download", "mnist", "--data-dir", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "teka download: error: train-images could not be downloaded\n"


def test_missing_files_are_an_error_that_names_the_command(tmp_path, fails):
    assert f"teka download mnist --data-dir {tmp_path}" in fails(
        "train", "--data", "mnist", "--data-dir", tmp_path, "--out", tmp_path / "r"
    )
