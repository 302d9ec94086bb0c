"""Layers of two checkouts of teka, timed in turns: python benchmarks/checkouts.py BEFORE AFTER --out FILE.

Each checkout has a process of its own, one thread, and the same inputs; of a case the two take turns, several rounds,
and the least seconds count. A ratio above 1 is a layer that has become slower. `--kernels`, `--relatives`, `--sides`,
`--dim` and `--heads` say which layers, of all at two small sizes by default.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import torch

from teka.provenance import provenance

CROSSED = ("softmax", "squared_relu", "taylor2", "positive")
OTHERS = ("relu", "elu", "focused", "trigonometric")
RELATIVES = (None, "rotary", "rotation", "fourier", "clipped")
SECONDS = 0.12  # of one turn


def cases(options: argparse.Namespace) -> list[dict[str, object]]:
    """Kernels × relative kernels × sides × forward or both ways, and a causal layer."""
    pairs = [*itertools.product(CROSSED, RELATIVES), *itertools.product(OTHERS, (None, "rotary"))]
    layers = [
        {"kernel": kernel, "relative": relative, "causal": False} for kernel, relative in pairs
    ]
    layers += [
        {"kernel": "squared_relu", "relative": relative, "causal": True}
        for relative in (None, "rotary")
    ]
    chosen = [
        one
        for one in layers
        if one["kernel"] in options.kernels and str(one["relative"]) in options.relatives
    ]
    widths = {"dim": options.dim, "heads": options.heads}
    return [
        layer | widths | {"side": side, "learns": learns}
        for layer in chosen
        for side in options.sides
        for learns in (False, True)
    ]


def serve() -> None:
    """Time the case of each line that comes in."""
    import teka

    torch.set_num_threads(1)

    def step_of(
        kernel: str,
        relative: str | None,
        causal: bool,
        dim: int,
        heads: int,
        side: int,
        learns: bool,
    ):
        torch.manual_seed(0)
        layer, grid = (
            teka.nn.Attention(dim, heads, kernel=kernel, relative=relative, causal=causal),
            teka.Grid((side, side)),
        )
        tokens = torch.randn(2, side * side, dim, requires_grad=learns)

        def step() -> None:
            with torch.set_grad_enabled(learns):
                output = layer(tokens, grid)
                if learns:
                    output.square().mean().backward()

        return step

    def seconds(step) -> float:
        begun = time.perf_counter()
        step()
        return time.perf_counter() - begun

    last, step, repeats = "", lambda: None, 1
    for line in sys.stdin:
        if line != last:
            last, step = line, step_of(**json.loads(line))
            seconds(step)
            repeats = max(3, min(200, round(SECONDS / seconds(step))))
        print(min(seconds(step) for _ in range(repeats)), flush=True)


def main() -> None:
    """Write the least milliseconds of every case in both checkouts, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", nargs=2, type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kernels", nargs="+", default=[*CROSSED, *OTHERS])
    parser.add_argument("--relatives", nargs="+", default=[str(one) for one in RELATIVES])
    parser.add_argument("--sides", nargs="+", type=int, default=[7, 28])
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    options = parser.parse_args()
    # Memory is kept between steps, as `make` has it: to get pages anew for large tensors takes longer at random.
    kept = {f"MALLOC_{name}_THRESHOLD_": str(2**32) for name in ("MMAP", "TRIM")}
    servers = [
        subprocess.Popen(
            [sys.executable, __file__, "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **kept, "PYTHONPATH": str(checkout.resolve() / "src")},
        )
        for checkout in options.checkouts
    ]

    def ask(server: subprocess.Popen, case: dict[str, object]) -> float:
        assert server.stdin is not None
        assert server.stdout is not None
        print(json.dumps(case), file=server.stdin, flush=True)
        return float(server.stdout.readline())

    rows = []
    for case in cases(options):
        turns = [[ask(server, case) for server in servers] for _ in range(options.rounds)]
        before, after = (1e3 * min(one) for one in zip(*turns, strict=True))
        rows.append(
            case
            | {
                "before_ms": round(before, 3),
                "after_ms": round(after, 3),
                "ratio": round(after / before, 3),
            }
        )
        print(*rows[-1].values(), flush=True)
    for server in servers:
        server.terminate()
    torch.set_num_threads(1)  # as the servers had
    ratios = [row["ratio"] for row in rows]
    content = {
        **provenance(" ".join(["python", *sys.argv])),
        "commits": [
            subprocess.check_output(["git", "-C", path, "rev-parse", "HEAD"], text=True).strip()
            for path in options.checkouts
        ],
        "median_ratio": median(ratios),
        "largest_ratio": max(ratios),
        "rows": rows,
    }
    options.out.write_text(json.dumps(content) + "\n", encoding="utf-8")
    print("median", median(ratios), "largest", max(ratios))


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else main()
