"""Time every backend of many attentions, and hold `backend="auto"` against the best of them.

    python reproduction/benchmarks/backends.py              # times, writes reproduction/benchmarks/backends.json, prints the table
    python reproduction/benchmarks/backends.py --table      # the table of the committed times, with today's model of cost

Rounds go through all backends of a case in turn, so that a slow second of the machine meets all of them; each time is a
median. One thread, two heads of one sample and small grids of many, forward and backward as in training, and forward.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

import teka
from teka.functional import attention
from teka.functional.dispatch import Workload, backend_costs, select_backend
from teka.functional.kernels import make_kernel
from teka.functional.positions import Positions
from teka.functional.relative import make_relative
from teka.provenance import provenance

OUT = Path(__file__).with_suffix(".json")
SHAPES = [
    (256,),
    (1024,),
    (2048,),
    (4096,),
    (16, 16),
    (32, 32),
    (48, 48),
    (64, 64),
    (6, 6, 6),
    (10, 10, 10),
    (16, 16, 16),
]
RELATIVES = (
    None,
    "rotary",
    "fourier",
    "clipped",
    "rotation",
    "quadratic",
    "table",
    "generalized_quadratic",
)
KERNELS = ("squared_relu", "constant")
DIM = 32
ONE = (2, 1)  # heads and samples
SMALL, MANY = [(4, 4), (6, 6), (8, 8), (12, 12), (16, 16)], [(8, 1), (8, 4), (8, 32)]
OF_MANY = (None, "rotary", "fourier", "clipped", "rotation")
Case = tuple[
    str, str | None, tuple[int, ...], int, int
]  # kernel, relative kernel, grid, heads, samples
ROUNDS, SECONDS = 7, 2.0  # rounds of a case, fewer but at least 3 where they take longer
BAND = 1.3  # times the best
HOPELESS = 4.0  # a backend that takes so many times as long as the best in the first round is not timed again


def work_of(
    kernel: str, relative: str | None, shape: tuple[int, ...], heads: int, batch: int
) -> Workload:
    """The attention of a case."""
    sites = Positions(teka.Grid(shape))
    placed = None
    if relative is not None:
        placed = make_relative(relative, heads=heads, dim=DIM, num_axes=len(shape), kernel=kernel)
    tokens = math.prod(shape)
    return Workload(
        make_kernel(kernel, DIM), placed, sites, tokens, tokens, DIM, DIM, heads=heads, batch=batch
    )


def seconds(step: Callable[[str], object], name: str) -> float:
    """Time of a step."""
    start = time.perf_counter()
    step(name)
    return time.perf_counter() - start


def measure(case: Case) -> dict[str, dict[str, float]]:
    """Median seconds of each backend that can compute a case, by direction."""
    _, _, shape, heads, batch = case
    work = work_of(*case)
    generator = torch.Generator().manual_seed(0)
    inputs = [
        torch.randn(batch, heads, work.num_queries, DIM, generator=generator).requires_grad_()
        for _ in range(3)
    ]
    names = list(backend_costs(work))

    def forward(name: str) -> torch.Tensor:
        return attention(
            *inputs, kernel=work.kernel, relative=work.relative, grid=teka.Grid(shape), backend=name
        )

    def without_gradients(name: str) -> None:
        with torch.no_grad():
            forward(name)

    def both(name: str) -> None:
        output = forward(name)
        torch.autograd.grad(output, inputs, output.detach(), allow_unused=True)

    result = {}
    for direction, step in (("forward", without_gradients), ("forward_backward", both)):
        first = {name: seconds(step, name) for name in names}  # the warm-up
        times = {name: [] for name in names if first[name] < HOPELESS * min(first.values())}
        for _ in range(max(3, min(ROUNDS, int(SECONDS / sum(first[name] for name in times))))):
            for name in times:
                times[name].append(seconds(step, name))
        result[direction] = first | {
            name: statistics.median(found) for name, found in times.items()
        }
    return result


def cases() -> list[Case]:
    """Every case with a choice; a constant kernel, which is what heads by position alone have, needs a position."""
    every = [(k, r, s, *ONE) for k in KERNELS for r in RELATIVES for s in SHAPES]
    every = [case for case in every if case[0] != "constant" or case[1] not in (None, "rotary")]
    every += [
        ("squared_relu", relative, shape, *many)
        for many in MANY
        for relative in OF_MANY
        for shape in SMALL
    ]
    return [case for case in every if len(backend_costs(work_of(*case))) > 1]


def table(times: list[dict]) -> str:
    """One line a case: the backend that is chosen, the best, and how much longer the chosen one takes."""
    lines = [
        "| kernel × relative | heads × samples | grid | auto | best forward | ×  | best with backward | × |",
        "|---|---|---|---|---|---|---|---|",
    ]
    worst, above = {"forward": 1.0, "forward_backward": 1.0}, 0
    for one in times:
        shape, heads, batch = tuple(one["shape"]), one["heads"], one["batch"]
        chosen = select_backend(
            "auto", backend_costs(work_of(one["kernel"], one["relative"], shape, heads, batch))
        )
        cells = []
        for direction in worst:
            found = one["seconds"][direction]
            best = min(found, key=lambda name: found[name])
            ratio = found[chosen] / found[best]
            worst[direction] = max(worst[direction], ratio)
            above += ratio > BAND
            cells += [best, f"{ratio:.2f}"]
        name = one["kernel"] if one["relative"] is None else f"{one['kernel']} × {one['relative']}"
        lines.append(
            f"| {name} | {heads} × {batch} | {' × '.join(map(str, shape))} | {chosen} | {' | '.join(cells)} |"
        )
    forward, both = worst.values()
    lines += [
        "",
        f"auto takes at most {forward:.2f} times the best, and {both:.2f} times with the backward pass",
    ]
    lines += [f"above {BAND} times in {above} of {2 * len(times)} comparisons"]
    return "\n".join(lines)


def main() -> None:
    """Time, or read what was timed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.table:
        times = []
        measure(cases()[0])  # a process's first calls import what they need
        for case in cases():
            names = ("kernel", "relative", "shape", "heads", "batch")
            times.append({**dict(zip(names, case, strict=True)), "seconds": measure(case)})
            print(*case, times[-1]["seconds"], flush=True)
        result = {
            "provenance": provenance("python reproduction/benchmarks/backends.py"),
            "dim": DIM,
            "times": times,
        }
        OUT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(table(json.loads(OUT.read_text(encoding="utf-8"))["times"]))


if __name__ == "__main__":
    main()
