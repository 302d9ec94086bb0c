import json

from reproduction.__main__ import run as main


def test_approximate_prints_its_tables_and_writes_its_files(tmp_path, capsys, fails):
    some = [
        "--dim",
        "4",
        "--tokens",
        "9",
        "--sizes",
        "0.5",
        "--radii",
        "1",
        "--num-features",
        "4",
        "8",
    ]
    line = ["approximate", *some, "--kernels", "positive", "--draws", "2", "--out", str(tmp_path)]
    assert main(line) == 0
    assert "positive, fixed_norm" in capsys.readouterr().out
    content = json.loads((tmp_path / "approximation.json").read_text())
    assert content["command"].startswith("python -m reproduction approximate --dim 4")
    assert "got 'softmax'" in fails("approximate", "--kernels", "softmax", "--out", tmp_path)
