import json

from teka.cli import main


def test_it_prints_and_writes_the_accuracy(trained_folder, capsys):
    assert main(["evaluate", str(trained_folder)]) == 0
    saved = json.loads((trained_folder / "evaluation.json").read_text())
    assert f"{saved['accuracy']:.2%}" in capsys.readouterr().out


def test_a_folder_without_a_run_is_an_error(tmp_path, fails):
    assert "run.json" in fails("evaluate", tmp_path)
