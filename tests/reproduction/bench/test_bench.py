import importlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor

import teka
from reproduction.bench import bench
from reproduction.bench.cases import Case
from reproduction.bench.layers import LAYERS, FourGemms, Settings, Step
from reproduction.bench.measure import Cost
from reproduction.bench.report import bench_table
from teka.nn import Attention

plan_module = importlib.import_module("teka.functional.plan")
bench_module = importlib.import_module("reproduction.bench.bench")
cases_module = importlib.import_module("reproduction.bench.cases")
TINY: dict[str, Any] = {"dim": 8, "heads": 2, "batch": 1, "repeats": 2, "warmup": 1}
ROW = {"layer", "backend", "tokens", "grid", "rounds", "seconds", "iqr", "peak_bytes", "flops"}
ROW |= {"ratio_to_gemms", "ratio_to_sdpa", "flops_ratio_to_gemms", "gflops_per_second"}


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    """Checks of few tokens, and an empty picture: the real ones have tests of their own."""
    monkeypatch.setattr(cases_module, "CHECKED_TOKENS", 16)
    monkeypatch.setattr(bench_module, "TRIAL_LENGTHS", (4,))
    monkeypatch.setattr(bench_module, "draw_bench", lambda result: Figure(figsize=(1, 1)))


def test_the_file_holds_a_row_for_every_layer(tmp_path: Path):
    result = bench((9,), **TINY, out=tmp_path / "new" / "bench", command="as typed")
    content = json.loads((tmp_path / "new" / "bench" / "bench.json").read_text())
    assert content == json.loads(json.dumps(result))
    assert set(content) == {
        "command",
        "teka",
        "torch",
        "hardware",
        "date",
        "settings",
        "rows",
        "scaling",
        "left_out",
    }
    assert (content["command"], content["teka"]) == ("as typed", teka.__version__)
    assert content["settings"]["lengths"] == [9]
    assert content["left_out"] == []
    places = [(row["layer"], row["backend"], tuple(row["grid"])) for row in content["rows"]]
    assert places == [(layer.name, layer.backend, layer.grid(9).shape) for layer in LAYERS]
    assert [(one["layer"], one["backend"]) for one in content["scaling"]] == [
        place[:2] for place in places
    ]
    for row in content["rows"]:
        assert set(row) == ROW
        assert (row["tokens"], row["rounds"]) == (9, 2)
        assert row["seconds"] > 0
        assert row["iqr"] >= 0
        assert row["peak_bytes"] > 0
        assert math.isclose(row["gflops_per_second"] * row["seconds"] * 1e9, row["flops"])
        if row["layer"] == "four_gemms":
            assert (row["ratio_to_gemms"], row["flops_ratio_to_gemms"]) == (1, 1)
        if row["layer"] == "scaled_dot_product_attention":
            assert row["ratio_to_sdpa"] == 1
    assert (tmp_path / "new" / "bench" / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in (tmp_path / "new" / "bench").iterdir()) == [
        "bench.json",
        "bench.png",
    ]


def test_threads_and_random_numbers_are_left_as_they_were(tmp_path: Path):
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    within: list[int] = []
    bench(
        (9,),
        **TINY,
        layers=["squared_relu"],
        threads=threads + 1,
        out=tmp_path,
        progress=lambda line: within.append(torch.get_num_threads()),
    )
    assert set(within) == {threads + 1}
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


def test_a_layer_that_disagrees_with_its_dense_twin_is_not_timed_but_told(
    tmp_path: Path, monkeypatch
):
    exact = plan_module._sum_of_features
    monkeypatch.setattr(
        plan_module, "_sum_of_features", lambda *given, **named: 1.01 * exact(*given, **named)
    )
    result: Any = bench((9, 25), **TINY, layers=["squared_relu", "softmax"], out=tmp_path)
    assert [row["layer"] for row in result["rows"]] == ["four_gemms", "softmax"] * 2
    assert [
        (entry["layer"], entry["backend"], entry["tokens"]) for entry in result["left_out"]
    ] == [("squared_relu", "linear", 9), ("squared_relu", "linear", 25)]
    assert all(
        entry["reason"].startswith("error: differs from its dense twin")
        for entry in result["left_out"]
    )
    assert "not timed: squared_relu (linear) at 9 tokens: error: differs" in bench_table(result)


def test_a_layer_that_needs_too_much_memory_is_left_out_with_the_reason(tmp_path: Path):
    result: Any = bench(
        (9, 169), **TINY, layers=["squared_relu", "softmax-rotation"], max_bytes=2e5, out=tmp_path
    )
    assert [(row["layer"], row["tokens"]) for row in result["rows"]] == [
        ("four_gemms", 9),
        ("squared_relu", 9),
        ("softmax-rotation", 9),
        ("four_gemms", 169),
        ("squared_relu", 169),
    ]
    (entry,) = result["left_out"]
    assert (entry["layer"], entry["grid"], entry["tokens"]) == ("softmax-rotation", [13, 13], 169)
    assert "more than max_bytes = 2e+05" in entry["reason"]


def test_a_layer_whose_step_would_take_too_long_is_left_out_with_the_reason(
    tmp_path: Path, monkeypatch
):
    def slow(cases: list[Case], num_tokens: int, settings: Settings) -> None:
        for case in cases:
            case.known[num_tokens] = Cost(0.5 if case.layer.name == "softmax" else 1e-6, 1000, 1000)

    monkeypatch.setattr(bench_module, "try_out", slow)
    result: Any = bench(
        (9, 36), **TINY, layers=["squared_relu", "softmax"], max_seconds=2.0, out=tmp_path
    )
    assert [(row["layer"], row["tokens"]) for row in result["rows"]] == [
        ("four_gemms", 9),
        ("squared_relu", 9),
        ("softmax", 9),  # foretold 1.1 s
        ("four_gemms", 36),
        ("squared_relu", 36),
        ("softmax", 36),  # foretold from what it really took
    ]
    result = bench((25,), **TINY, layers=["squared_relu", "softmax"], max_seconds=2.0, out=tmp_path)
    (entry,) = result["left_out"]
    assert (entry["layer"], entry["tokens"]) == ("softmax", 25)
    assert entry["reason"] == "a step would take about 3.1 s, more than max_seconds = 2"


def test_sizes_are_tried_that_are_smaller_than_all_asked_for(tmp_path: Path):
    said: list[str] = []
    bench((4, 9), **TINY, layers=["squared_relu"], out=tmp_path, progress=said.append)
    assert not any("trial" in line for line in said)
    bench((9,), **TINY, layers=["squared_relu"], out=tmp_path, progress=said.append)
    assert [line for line in said if "trial" in line] == ["4 tokens: trial"]


def test_when_the_budget_is_spent_the_rest_is_left_out_and_rows_say_their_rounds(
    tmp_path: Path, monkeypatch
):
    clock = [0.0]

    def now() -> float:
        clock[0] += 0.1  # goes by between two looks at the clock
        return clock[0]

    monkeypatch.setattr(cases_module.time, "perf_counter", now)
    monkeypatch.setattr("reproduction.bench.measure.timer", now)
    options = {**TINY, "repeats": 9}
    result: Any = bench(
        (9, 16, 25), **options, layers=["squared_relu"], budget_seconds=4.0, out=tmp_path
    )
    assert result["left_out"]
    assert {entry["reason"] for entry in result["left_out"]} <= {
        "no time left of budget_seconds = 4",
        "the four matrix products, which all else is compared with, are not timed",
    }
    assert all(1 <= row["rounds"] < 9 for row in result["rows"])
    assert "not timed: squared_relu (linear) at 25 tokens: no time left" in bench_table(result)


def test_a_forward_pass_alone_has_a_third_of_the_flops_of_the_four_products(tmp_path: Path):
    both: Any = bench((9,), **TINY, layers=["squared_relu"], out=tmp_path)
    forward: Any = bench((9,), **TINY, direction="forward", layers=["squared_relu"], out=tmp_path)
    assert [row["layer"] for row in forward["rows"]] == ["four_gemms", "squared_relu"]
    assert both["rows"][0]["flops"] == 3 * forward["rows"][0]["flops"]
    assert both["rows"][1]["peak_bytes"] > forward["rows"][1]["peak_bytes"]


def test_every_pass_is_in_the_precision_asked_for_and_the_check_in_float32(
    tmp_path: Path, monkeypatch
):
    seen: dict[str, set[object]] = {"check": set(), "step": set()}
    checked = cases_module.measure.disagreement

    def disagreement(step: Step) -> object:
        seen["check"].add(step.output(step.tokens).dtype)
        return checked(step)

    class Seen(Step):
        def output(self, tokens: Tensor) -> Tensor:
            output = super().output(tokens)
            if self.direction == "forward":  # the check is of gradients too
                seen["step"].add((type(self.module), output.dtype))
            return output

    monkeypatch.setattr(cases_module.measure, "disagreement", disagreement)
    monkeypatch.setattr(cases_module, "Step", Seen)
    options = {**TINY, "direction": "forward", "precision": "bfloat16", "layers": ["squared_relu"]}
    result: Any = bench((9,), **options, out=tmp_path)
    assert seen == {
        "check": {torch.float32},
        "step": {(FourGemms, torch.bfloat16), (Attention, torch.bfloat16)},
    }
    assert result["settings"]["precision"] == "bfloat16"
    assert "2 heads, bfloat16, cpu" in bench_table(result)


def test_a_layer_that_runs_out_of_a_gpus_memory_is_left_out_and_the_others_are_timed(
    tmp_path: Path, monkeypatch
):
    measured = cases_module.measure_cost

    def measure_cost(step: Step) -> Cost:
        if step.tokens.shape[1] == 16 and isinstance(step.module, Attention):
            raise torch.OutOfMemoryError
        return measured(step)

    monkeypatch.setattr(cases_module, "measure_cost", measure_cost)
    result: Any = bench((9, 16), **TINY, layers=["squared_relu"], out=tmp_path)
    assert [(row["layer"], row["tokens"]) for row in result["rows"]] == [
        ("four_gemms", 9),
        ("squared_relu", 9),
        ("four_gemms", 16),
    ]
    (entry,) = result["left_out"]
    assert "runs out of the GPU's memory" in entry["reason"]


def test_nothing_timed_is_an_error_that_says_why(tmp_path: Path):
    with pytest.raises(
        ValueError, match="nothing was timed; of four_gemms: no time left of budget_seconds = 1e-09"
    ):
        bench((9,), **TINY, layers=["softmax"], budget_seconds=1e-9, out=tmp_path)


def test_less_memory_than_the_baseline_needs_is_an_error(tmp_path: Path):
    with pytest.raises(ValueError, match=r"max_bytes must be at least the \d+ bytes.*got 10\.0"):
        bench((9,), **TINY, layers=["softmax"], max_bytes=10.0, out=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_performer_is_an_error_unless_its_layer_is_left_out(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "performer_pytorch", None)
    with pytest.raises(ImportError, match="leave that layer out"):
        bench((9,), **TINY, out=tmp_path)
    bench((9,), **TINY, layers=["positive"], out=tmp_path)


def test_an_output_folder_that_is_a_file_is_an_error(tmp_path: Path):
    (tmp_path / "file").write_text("kept")
    with pytest.raises(ValueError, match="out must be"):
        bench((9,), **TINY, out=tmp_path / "file")
    assert (tmp_path / "file").read_text() == "kept"


def test_a_run_that_fails_leaves_the_old_files(tmp_path: Path, monkeypatch):
    bench((9,), **TINY, layers=["squared_relu"], out=tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(result: object) -> None:
        raise RuntimeError("no ink")

    monkeypatch.setattr(bench_module, "draw_bench", fail)
    with pytest.raises(RuntimeError, match="no ink"):
        bench((16,), **TINY, layers=["squared_relu"], out=tmp_path)
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert [row["tokens"] for row in json.loads(after.pop("bench.partial.json"))["rows"]] == [
        16,
        16,
    ]
    assert after == before
