import torch

from teka.cli import main
from teka.models import load
from teka.training import restore


def test_it_writes_a_model_file_that_is_the_run(trained_folder, tmp_path, capsys):
    assert main(["export", str(trained_folder), "--out", str(tmp_path / "model"), "--dtype", "float16"]) == 0
    assert f"written: {tmp_path / 'model'}" in capsys.readouterr().out
    images = torch.rand(2, 1, 14, 14)
    torch.testing.assert_close(
        load(tmp_path / "model")(images), restore(trained_folder).model(images), atol=1e-2, rtol=0
    )


def test_bad_options_are_one_line(trained_folder, tmp_path, fails):
    assert "out" in fails("export", trained_folder)
    assert "dtype" in fails("export", trained_folder, "--out", tmp_path / "model", "--dtype", "int8")
    assert "run.json" in fails("export", tmp_path, "--out", tmp_path / "model")
    (tmp_path / "notes.txt").write_text("")
    assert "notes.txt" in fails("export", trained_folder, "--out", tmp_path)
