from typing import Any

import pytest


def _row(
    layer: str, backend: str, tokens: int, ratio: float, to_sdpa: float | None
) -> dict[str, Any]:
    return {
        "layer": layer,
        "backend": backend,
        "tokens": tokens,
        "grid": [int(tokens**0.5)] * 2,
        "rounds": 7,
        "seconds": ratio * tokens / 1e4,
        "iqr": 1e-4,
        "ratio_to_gemms": ratio,
        "ratio_to_sdpa": to_sdpa,
        "peak_bytes": 12_300_000,
        "flops": 10**9,
        "flops_ratio_to_gemms": ratio / 2,
        "gflops_per_second": 45.6,
    }


@pytest.fixture
def result() -> dict[str, Any]:
    """What a benchmark of three layers and two sizes returns, one of them too large for its memory."""
    rows = [
        _row("four_gemms", "torch", 256, 1.0, 0.25),
        _row("squared_relu-rotation", "toeplitz", 256, 3.5, 0.875),
        _row("softmax", "dense", 256, 4.0, None),
        _row("four_gemms", "torch", 1024, 1.0, None),
        _row("squared_relu-rotation", "toeplitz", 1024, 7.25, None),
    ]
    slope = {"slope": 1.234, "standard_error": 0.05}
    between = {"tokens": 1234.5, "where": "between sizes", "up_to": 4096}
    scaling = [
        {
            "layer": "four_gemms",
            "backend": "torch",
            "time": slope,
            "memory": None,
            "crossover": None,
        },
        {
            "layer": "squared_relu-rotation",
            "backend": "toeplitz",
            "time": None,
            "memory": slope,
            "crossover": between,
        },
    ]
    left_out = [
        {
            "layer": "softmax",
            "backend": "dense",
            "tokens": 1024,
            "grid": [32, 32],
            "reason": "needs 9 GB",
        }
    ]
    settings = {"batch": 2, "dim": 256, "heads": 8, "device": "cpu", "threads": 1, "repeats": 7}
    settings |= {"direction": "forward_backward", "precision": "bfloat16"}
    made = {
        "date": "2026-01-02",
        "hardware": "an abacus, 10 cores, 1 thread",
        "torch": "2.6",
        "teka": "0.1",
    }
    return {**made, "settings": settings, "rows": rows, "scaling": scaling, "left_out": left_out}
