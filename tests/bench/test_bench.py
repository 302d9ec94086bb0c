import importlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import teka
from teka.bench import LAYERS, bench, bench_table
from teka.functional.backend.sums import Sums

attention_module = importlib.import_module("teka.functional.attention")
bench_module = importlib.import_module("teka.bench.bench")
TINY: dict[str, Any] = {"dim": 8, "heads": 2, "batch": 1, "repeats": 2, "warmup": 1}
ROW = {"layer", "backend", "side", "tokens", "seconds", "iqr", "ratio_to_gemms", "peak_bytes", "flops"}
ROW |= {"flops_ratio_to_gemms", "gflops_per_second"}


def test_the_file_holds_a_row_for_every_layer(tmp_path: Path):
    result = bench((3,), **TINY, out=tmp_path / "new" / "bench", command="as typed")
    content = json.loads((tmp_path / "new" / "bench" / "bench.json").read_text())
    assert content == json.loads(json.dumps(result))
    assert set(content) == {"command", "teka", "torch", "hardware", "date", "settings", "rows", "left_out"}
    assert (content["command"], content["teka"]) == ("as typed", teka.__version__)
    assert content["settings"]["sides"] == [3]
    assert content["left_out"] == []
    places = [(row["layer"], row["backend"], row["side"], row["tokens"]) for row in content["rows"]]
    assert places == [(layer.name, layer.backend, 3, 9) for layer in LAYERS]
    for row in content["rows"]:
        assert set(row) == ROW
        assert row["seconds"] > 0
        assert row["iqr"] >= 0
        assert row["peak_bytes"] > 0
        assert math.isclose(row["gflops_per_second"] * row["seconds"] * 1e9, row["flops"])
        if row["layer"] == "four_gemms":
            assert (row["ratio_to_gemms"], row["flops_ratio_to_gemms"]) == (1, 1)
    assert (tmp_path / "new" / "bench" / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in (tmp_path / "new" / "bench").iterdir()) == ["bench.json", "bench.png"]


def test_threads_and_random_numbers_are_left_as_they_were(tmp_path: Path):
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    within: list[int] = []
    bench(
        (3,),
        **TINY,
        layers=["squared_relu"],
        threads=threads + 1,
        out=tmp_path,
        progress=lambda line: within.append(torch.get_num_threads()),
    )
    assert set(within) == {threads + 1}
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


def test_a_layer_that_disagrees_with_its_dense_twin_is_not_timed_but_told(tmp_path: Path, monkeypatch):
    exact = attention_module.linear

    def wrong(query_features, key_features, value) -> Sums:
        sums = exact(query_features, key_features, value)
        return Sums(1.01 * sums.numerator, sums.denominator)

    monkeypatch.setattr(attention_module, "linear", wrong)
    result: Any = bench((3, 5), **TINY, layers=["squared_relu", "softmax"], out=tmp_path)
    assert [row["layer"] for row in result["rows"]] == ["four_gemms", "softmax"] * 2
    assert [(entry["layer"], entry["backend"], entry["side"]) for entry in result["left_out"]] == [
        ("squared_relu", "linear", 3),
        ("squared_relu", "linear", 5),
    ]
    assert all(entry["reason"].startswith("error: differs from its dense twin") for entry in result["left_out"])
    assert "not timed: squared_relu (linear) at 3×3: error: differs" in bench_table(result)


def test_a_layer_that_needs_too_much_memory_is_left_out_with_the_reason(tmp_path: Path):
    result: Any = bench((3, 13), **TINY, layers=["squared_relu", "softmax-rotation"], max_bytes=2e5, out=tmp_path)
    assert [(row["layer"], row["side"]) for row in result["rows"]] == [
        ("four_gemms", 3),
        ("squared_relu", 3),
        ("softmax-rotation", 3),
        ("four_gemms", 13),
        ("squared_relu", 13),
    ]
    (entry,) = result["left_out"]
    assert (entry["layer"], entry["side"], entry["tokens"]) == ("softmax-rotation", 13, 169)
    assert "more than max_bytes = 2e+05" in entry["reason"]


def test_less_memory_than_the_yardstick_needs_is_an_error(tmp_path: Path):
    with pytest.raises(ValueError, match=r"max_bytes is 10\.0, expected at least the \d+ bytes"):
        bench((3,), **TINY, layers=["softmax"], max_bytes=10.0, out=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_performer_is_an_error_unless_its_layer_is_left_out(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "performer_pytorch", None)
    with pytest.raises(ImportError, match="leave that layer out"):
        bench((3,), **TINY, out=tmp_path)
    bench((3,), **TINY, layers=["positive"], out=tmp_path)


def test_an_output_folder_that_is_a_file_is_an_error(tmp_path: Path):
    (tmp_path / "file").write_text("kept")
    with pytest.raises(ValueError, match="out is"):
        bench((3,), **TINY, out=tmp_path / "file")
    assert (tmp_path / "file").read_text() == "kept"


def test_a_run_that_fails_leaves_the_old_files(tmp_path: Path, monkeypatch):
    bench((3,), **TINY, layers=["squared_relu"], out=tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(result: object) -> None:
        raise RuntimeError("no ink")

    monkeypatch.setattr(bench_module, "draw_bench", fail)
    with pytest.raises(RuntimeError, match="no ink"):
        bench((4,), **TINY, layers=["squared_relu"], out=tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
