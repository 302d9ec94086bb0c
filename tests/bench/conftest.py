from typing import Any

import pytest


def _row(layer: str, backend: str, side: int, ratio: float) -> dict[str, Any]:
    return {
        "layer": layer,
        "backend": backend,
        "side": side,
        "tokens": side**2,
        "seconds": ratio * side**2 / 1e4,
        "iqr": 1e-4,
        "ratio_to_gemms": ratio,
        "peak_bytes": 12_300_000,
        "flops": 10**9,
        "flops_ratio_to_gemms": ratio / 2,
        "gflops_per_second": 45.6,
    }


@pytest.fixture
def result() -> dict[str, Any]:
    """What a benchmark of three layers and two sizes returns, one of them too large for its memory."""
    rows = [
        _row("four_gemms", "torch", 16, 1.0),
        _row("squared_relu-rotation", "toeplitz", 16, 3.5),
        _row("softmax", "dense", 16, 4.0),
        _row("four_gemms", "torch", 32, 1.0),
        _row("squared_relu-rotation", "toeplitz", 32, 7.25),
    ]
    left_out = [{"layer": "softmax", "backend": "dense", "side": 32, "tokens": 1024, "reason": "needs 9 GB"}]
    settings = {"batch": 2, "dim": 256, "heads": 8, "device": "cpu", "threads": 1, "repeats": 7}
    return {"settings": settings, "rows": rows, "left_out": left_out}
