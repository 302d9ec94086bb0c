import json

from teka.cli import main


def test_it_writes_the_report_the_curve_and_the_page(trained_folder, tmp_path, capsys):
    assert main(["shift", str(trained_folder), "--max-shift", "2", "--out", str(tmp_path / "out")]) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "report.json",
        "examples.npz",
        "shift_curve.png",
        "report.html",
    }
    assert json.loads((tmp_path / "out" / "report.json").read_text())["command"].startswith("teka shift")
    assert "worst" in capsys.readouterr().out


def test_a_canvas_allows_larger_shifts(trained_folder, tmp_path):
    arguments = ["shift", str(trained_folder), "--max-shift", "5", "--mode", "canvas", "--out", str(tmp_path)]
    assert main(arguments) == 0
    assert json.loads((tmp_path / "report.json").read_text())["mode"] == "canvas"


def test_images_that_would_lose_something_are_an_error(trained_folder, tmp_path, fails):
    assert "shift" in fails("shift", trained_folder, "--max-shift", "5", "--out", tmp_path)


def test_bad_options_are_one_line(trained_folder, tmp_path, fails):
    assert "mode" in fails("shift", trained_folder, "--mode", "losless")
    assert "each folder once" in fails("shift", trained_folder, trained_folder)
    assert "run.json" in fails("shift", tmp_path)
