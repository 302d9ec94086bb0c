import json

from teka.cli import main


def test_it_prints_the_table_and_writes_its_files(tmp_path, capsys):
    size = ["--sides", "[4]", "--dim", "8", "--heads", "2", "--repeats", "1", "--warmup", "0"]
    assert main(["bench", *size, "--layers", "[squared_relu]", "--out", str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"bench.json", "bench.png"}
    assert json.loads((tmp_path / "bench.json").read_text())["command"].startswith("teka bench")
    assert "squared_relu" in capsys.readouterr().out


def test_bad_options_are_one_line(tmp_path, fails):
    assert "layers" in fails("bench", "--layers", "[squared_rel]", "--out", tmp_path)
    assert "sides" in fails("bench", "--sides", "[0]", "--out", tmp_path)
