import itertools
import json
from typing import Any

import pandas as pd
import pytest
import torch

import teka
from reproduction.benchmarks import backends, decoding, gpu, layers, million_tokens
from reproduction.benchmarks.measurement import measure_median_times


def test_timed_steps_are_interleaved():
    calls: list[str] = []
    now = itertools.count()
    steps = {name: lambda name=name: calls.append(name) for name in "ab"}
    medians = measure_median_times(steps, seconds=3.0, clock=lambda: float(next(now)))
    assert "".join(calls) == "abababab"  # once without the clock
    assert medians == {"a": 1.0, "b": 1.0}


def test_the_layers_are_timed_and_added_to_the_file(tmp_path, capsys):
    out = tmp_path / "layers.json"
    names = ["teka, causal", "plain", "MultiheadAttention", "constant × quadratic"]
    layers.main(tokens=[16], layers=names, seconds=0.0, out=out)
    (result,) = json.loads(out.read_text()).values()
    for row in result["times"]:
        assert set(row["ms"]) == {layers.UNIT, *names}
    layers.main(table=True, out=out)
    assert "multiples of the four products" in capsys.readouterr().out


def test_the_plain_layer_is_the_default_layer():
    torch.manual_seed(0)
    plain, default = layers.PlainPyTorchLayer(), layers.TekaLayer()
    dim_head = layers.DIM // layers.HEADS
    # teka rotates neighboring features, the plain layer features that are half a head apart.
    order = torch.arange(layers.DIM).view(layers.HEADS, 2, dim_head // 2).mT.flatten()
    query, key, value, output = (projection.state_dict() for projection in plain.projections)
    attention: Any = default.attention
    attention.query.load_state_dict({name: x[order] for name, x in query.items()})
    attention.key.load_state_dict({name: x[order] for name, x in key.items()})
    attention.value.load_state_dict(value)
    attention.output.load_state_dict(output)
    plain.frequency.data = attention.relative.frequency[..., 0]
    tokens = torch.randn(2, 9, layers.DIM)
    assert torch.allclose(plain(tokens), default(tokens), atol=1e-5)


def test_the_committed_times_of_layers_can_be_read(capsys):
    layers.main(table=True)
    assert "performer-pytorch, compiled" in capsys.readouterr().out


@pytest.mark.parametrize("backward", [False, True])
def test_the_peak_memory_of_a_process_is_measured(backward):
    row: dict[str, Any] = million_tokens.measure_layer_pass("squared_relu", 16, backward=backward)
    assert row["peak_bytes"] > 1e8
    assert row["direction"] == ("forward_backward" if backward else "forward")


def test_each_call_of_a_decoder_adds_the_timed_tokens():
    layer = teka.nn.Attention(layers.DIM, layers.HEADS, causal=True, num_axes=1)
    states = []

    def step(token, state):
        output, state = layer.step(token, state)
        states.append(state)
        return output, state

    decode = decoding.make_decoder(step, torch.randn(2, 5, layers.DIM))
    decode()
    decode()
    num_tokens = [state[0].num_tokens for state in states]
    count = decoding.WARMUP_TOKENS + 2 * decoding.TIMED_TOKENS
    assert num_tokens == list(range(1, count + 1))


def test_every_backend_of_an_attention_is_timed():
    case = {
        "kernel": "squared_relu",
        "relative": "fourier",
        "shape": (3, 4),
        "heads": 2,
        "batch": 1,
    }
    times = backends.time_backends(case, seconds=0.0)
    assert set(times) == {"forward", "forward_backward"}
    assert set(times["forward"]) == {"dense", "linear", "fft"}
    frame = backends.make_time_table([{**case, "seconds": times}])
    assert frame.is_chosen.sum() == 2


def test_the_fit_finds_the_rates_of_exact_times():
    rows = []
    for heads, multiply_adds, num_bytes in itertools.product([1, 8], [1e6, 1e8], [1e5, 1e9]):
        nanoseconds = 2e5 + heads * (3e4 + 0.05 * multiply_adds + 0.1 * num_bytes)
        costs = {"heads": heads, "multiply_adds": multiply_adds, "bytes": num_bytes}
        rows.append({"backend": "linear", "nanoseconds": nanoseconds, **costs})
    rates = backends.fit_cost_constants(pd.DataFrame(rows)).loc["linear"]
    assert rates.tolist() == pytest.approx([0.05, 0.1, 2e5, 3e4], rel=1e-6)


def test_the_committed_times_of_backends_can_be_read(capsys):
    backends.main(table=True)
    assert "of 458 comparisons" in capsys.readouterr().out


def test_attention_is_timed_with_and_without_rotary_and_beside_softmax(monkeypatch):
    monkeypatch.setattr(gpu, "NUM_CALLS", 1)
    inputs = gpu.draw_queries_keys_values(1, 16, torch.float32)
    for is_rotary, is_causal in itertools.product([False, True], repeat=2):
        variants = gpu.make_attention_functions(inputs, is_rotary, is_causal)
        variants = {name: passes for name, passes in variants.items() if "compiled" not in name}
        rows = gpu.time_attention_functions(variants, inputs[0], seconds=0.0)
        for row in rows:
            assert len(row["seconds"]) == 2 + (not is_rotary)
            assert min(row["seconds"].values()) > 0


def test_the_committed_times_of_the_gpu_can_be_read(capsys):
    gpu.main(table=True)
    assert "causal squared_relu × rotary, without Triton" in capsys.readouterr().out
