"""Time sums over keys in blocks of tokens against the same without blocks, from few tokens to many.

    python benchmarks/blocks.py              # one thread and two, writes benchmarks/blocks.json and prints the tables
    python benchmarks/blocks.py --table      # the tables of the committed times

The two ways go in turns, and each time is a median; gradients are those of queries, keys, values and what is learned.
`LEAST_IN_BLOCKS` of `teka.functional.plan` goes by these tables.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from unittest.mock import patch

import torch

import teka
from teka.functional import attention
from teka.functional.plan import LEAST_IN_BLOCKS
from teka.functional.relative import make_relative
from teka.provenance import provenance

OUT = Path(__file__).with_suffix(".json")
HEADS, DIM, ROUNDS = 8, 32, 15
TWO_SIDED = (
    (1, 16),
    (1, 64),
    (2, 64),
    (8, 64),
    (16, 64),
    (1, 256),
    (1, 1024),
    (2, 1024),
    (4, 1024),
    (2, 4096),
    (4, 4096),
)
CAUSAL = ((1, 256), (1, 512), (2, 512), (2, 1024), (4, 1024), (2, 4096))
RELATIVES = {False: (None, "rotary", "fourier"), True: (None, "rotary")}
# What no number of tokens reaches, and what every one does.
NEVER, ALWAYS = (2**62, 2**62), (0, 0)


def measure(
    is_causal: bool, relative: str | None, batch: int, tokens: int
) -> dict[str, list[float]]:
    """Median milliseconds in blocks and without, forward, and forward and backward."""
    grid = teka.Grid(tokens) if is_causal else teka.Grid((round(tokens**0.5),) * 2)
    generator = torch.Generator().manual_seed(0)
    # With the tokens last in memory, as `teka.nn.Attention` makes them.
    drawn = (torch.randn(HEADS, DIM, batch, tokens, generator=generator) for _ in range(3))
    inputs = [one.permute(2, 0, 3, 1).requires_grad_() for one in drawn]
    placed, learned = None, []
    if relative is not None:
        placed = make_relative(
            relative, heads=HEADS, dim=DIM, num_axes=grid.num_axes, kernel="squared_relu"
        )
        # As in a layer: what positions make of features has a gradient too.
        learned = [
            one.requires_grad_() for one in vars(placed).values() if isinstance(one, torch.Tensor)
        ]

    def forward() -> torch.Tensor:
        options = {
            "relative": placed,
            "grid": None if placed is None else grid,
            "is_causal": is_causal,
        }
        return attention(*inputs, kernel="squared_relu", backend="linear", **options)

    def without_gradients() -> None:
        with torch.no_grad():
            forward()

    def both() -> None:
        output = forward()
        torch.autograd.grad(output, [*inputs, *learned], output.detach())

    times: dict[str, list[list[float]]] = {"in blocks": [[], []], "without": [[], []]}
    for _ in range(ROUNDS):
        for way, least in (("in blocks", ALWAYS), ("without", NEVER)):
            with patch.dict(LEAST_IN_BLOCKS, dict.fromkeys(LEAST_IN_BLOCKS, least)):
                for found, step in zip(times[way], (without_gradients, both), strict=True):
                    start = time.perf_counter()
                    step()
                    found.append(1000 * (time.perf_counter() - start))
    return {
        way: [round(statistics.median(found), 2) for found in directions]
        for way, directions in times.items()
    }


def table(times: list[dict]) -> str:
    """Milliseconds forward and backward in blocks, without, and their ratio."""
    lines: list[str] = []
    for threads in (1, 2):
        for is_causal, relatives in RELATIVES.items():
            names = [relative or "none" for relative in relatives]
            how = f"{'causal' if is_causal else 'two-sided'}, {threads} thread{'s' if threads > 1 else ''}"
            lines += [
                "",
                f"| {how}: samples × tokens | {' | '.join(names)} |",
                "|---|" + "---|" * len(names),
            ]
            for batch, tokens in CAUSAL if is_causal else TWO_SIDED:
                key = {"threads": threads, "is_causal": is_causal, "batch": batch, "tokens": tokens}
                cells = [f"{batch} × {tokens:,}"]
                for relative in relatives:
                    (one,) = (
                        case
                        for case in times
                        if case.items() >= {**key, "relative": relative}.items()
                    )
                    blocks, without = one["in blocks"][1], one["without"][1]
                    cells.append(f"{blocks:.3g}, {without:.3g} ({blocks / without:.2f})")
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Time, or read what was timed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if not options.table:
        times = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for is_causal, relatives in RELATIVES.items():
                for relative in relatives:
                    for batch, tokens in CAUSAL if is_causal else TWO_SIDED:
                        case = {
                            "threads": threads,
                            "is_causal": is_causal,
                            "relative": relative,
                            "batch": batch,
                        }
                        times.append(
                            {
                                **case,
                                "tokens": tokens,
                                **measure(is_causal, relative, batch, tokens),
                            }
                        )
        result = {
            "provenance": provenance("python benchmarks/blocks.py"),
            "heads": HEADS,
            "dim": DIM,
            "times": times,
        }
        OUT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(table(json.loads(OUT.read_text(encoding="utf-8"))["times"]))


if __name__ == "__main__":
    main()
