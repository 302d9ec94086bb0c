"""Benchmark of decoding with the causal default layer, which processes one token at a time.

    python -m reproduction.benchmarks.decoding

The time per decoded token is compared with the time per token of a forward pass over the whole
sequence.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from reproduction.benchmarks.layers import DIM, HEADS
from reproduction.benchmarks.measurement import measure_median_times, run_script, save_results
from teka.nn import Attention

OUT = Path(__file__).with_suffix(".json")
# `torch.compile` recompiles the step in its first calls, until it supports any number of tokens.
WARMUP_TOKENS = 4
# Number of consecutive tokens that are timed together.
TIMED_TOKENS = 32


def make_decoder(step: Callable[..., tuple[Tensor, object]], tokens: Tensor) -> Callable[[], None]:
    """Return a function that decodes `TIMED_TOKENS` more tokens in each call.

    Args:
        step: Method `step` of a layer, which takes a token and a state, and returns the output and
            the next state.
        tokens: Tokens of each sequence in the batch. The first `WARMUP_TOKENS` are decoded at once.
    """
    state = None
    for position in range(WARMUP_TOKENS):
        _, state = step(tokens[:, position], state)

    def decode() -> None:
        nonlocal state
        for _ in range(TIMED_TOKENS):
            _, state = step(tokens[:, 0], state)

    return decode


def measure_time_per_token(layer: Attention, batch: int, num_tokens: int, seconds: float) -> dict:
    """Measure the microseconds per token of a causal layer in decoding and in a full pass."""
    tokens = torch.randn(batch, num_tokens, DIM)
    functions = {
        "full pass": lambda: layer(tokens, num_tokens),
        "step": make_decoder(layer.step, tokens),
        "compiled step": make_decoder(torch.compile(layer.step), tokens),
    }
    medians = measure_median_times(functions, seconds)
    counts = {"full pass": num_tokens, "step": TIMED_TOKENS, "compiled step": TIMED_TOKENS}
    return {"batch": batch, **{name: 1e6 * medians[name] / counts[name] for name in counts}}


@torch.inference_mode()
def main(
    *, batches: Sequence[int] = (1, 8, 32), tokens: int = 1024, seconds: float = 10, out: Path = OUT
) -> None:
    """Time the causal default layer, then print and save its time per token.

    Args:
        batches: Batch sizes to measure.
        tokens: Sequence length of the full forward pass.
        seconds: Mean total time of each measurement.
        out: Result file.
    """
    layer = Attention(DIM, HEADS, causal=True, num_axes=1).eval()
    rows = []
    for batch in batches:
        torch.compiler.reset()
        rows.append(measure_time_per_token(layer, batch, tokens, seconds))
        print({name: round(value) for name, value in rows[-1].items()}, flush=True)
    save_results(out, tokens=tokens, dim=DIM, heads=HEADS, microseconds_per_token=rows)


if __name__ == "__main__":
    run_script(main)
