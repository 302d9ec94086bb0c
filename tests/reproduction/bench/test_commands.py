import json

from reproduction.__main__ import run as main


def test_bench_prints_the_table_and_writes_its_files(tmp_path, capsys):
    size = ["--lengths", "16", "9", "--dim", "8", "--heads", "2", "--repeats", "1", "--warmup", "0"]
    assert (
        main(["bench", *size, "--layers", "squared_relu", "softmax", "--out", str(tmp_path)]) == 0
    )
    assert {path.name for path in tmp_path.iterdir()} == {"bench.json", "bench.png"}
    content = json.loads((tmp_path / "bench.json").read_text())
    assert content["command"].startswith("python -m reproduction bench")
    assert content["settings"]["lengths"] == [9, 16]
    assert content["settings"]["layers"] == ["four_gemms", "squared_relu", "softmax"]
    printed = capsys.readouterr().out
    assert "squared_relu" in printed
    assert "Measured " in printed


def test_bad_options_of_bench_are_one_line(tmp_path, fails):
    assert "layers" in fails("bench", "--layers", "squared_rel", "--out", tmp_path)
    assert "lengths must be the cells of a square grid" in fails(
        "bench", "--lengths", "17", "--out", tmp_path
    )
    assert "direction" in fails("bench", "--direction", "sideways", "--out", tmp_path)
    assert "got 'half'" in fails("bench", "--precision", "half", "--out", tmp_path)
