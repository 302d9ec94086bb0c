"""Push 1,048,576 tokens through one layer, forward and forward with backward, and measure time and peak memory.

    python reproduction/benchmarks/million_tokens.py
    python reproduction/benchmarks/million_tokens.py --side 256 --layers squared_relu-rotary --out /tmp/tokens.json

Each measurement is a process of its own. Its peak resident memory includes the interpreter, the weights, the tokens and
their gradients. Times are those of the processor, and of the wall.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch

from teka import Grid
from teka.files import read_json, write_json
from teka.nn import Attention
from teka.provenance import provenance

DIM, HEADS = 256, 8
LAYERS = {
    "squared_relu-rotary": {},
    "squared_relu-rotary-causal": {"causal": True, "num_axes": 1},
    "squared_relu": {"relative": None},
    "squared_relu-fourier": {"relative": "fourier"},
    "squared_relu-clipped": {"relative": "clipped"},
}
DIRECTIONS = ("forward", "forward_backward")
OUT = Path(__file__).with_suffix(".json")


def measure(name: str, direction: str, side: int) -> dict[str, object]:
    """Return the time and peak memory of one pass in this process."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    options = LAYERS[name]
    layer = Attention(DIM, HEADS, **options)
    for parameter in layer.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter)
    grid = Grid(side**2) if options.get("causal") else Grid((side, side))
    backward = direction == "forward_backward"
    tokens = torch.randn(1, side**2, DIM, requires_grad=backward)
    start, cpu_start = time.perf_counter(), time.process_time()
    with torch.set_grad_enabled(backward):
        output = layer(tokens, grid)
        if backward:
            output.backward(torch.ones_like(output))
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    return {
        "layer": name,
        "direction": direction,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "finite": bool(torch.isfinite(output).all()),
    }


def measure_in_process(name: str, direction: str, side: int) -> dict[str, object]:
    """Return the measurement of a process of its own, or how the process failed."""
    command = [sys.executable, __file__, "--side", str(side), "--one", name, direction]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return json.loads(result.stdout)
    message = result.stderr.strip().splitlines()[-1:]
    failed = f"exit {result.returncode}"
    return {"layer": name, "direction": direction, "failed": failed, "message": message}


def main() -> None:
    """Measure the layers in both directions, and replace their rows in the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--side", type=int, default=1024, help="square root of the tokens")
    parser.add_argument("--layers", nargs="+", choices=LAYERS, default=list(LAYERS))
    parser.add_argument("--directions", nargs="+", choices=DIRECTIONS, default=DIRECTIONS)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(measure(*options.one, options.side)))
        return
    torch.set_num_threads(1)
    description = provenance(
        f"python reproduction/benchmarks/million_tokens.py --side {options.side}"
    )
    rows = {}
    if options.out.exists():
        for row in read_json(options.out)["rows"]:
            rows[row["layer"], row["direction"]] = row
    for name in options.layers:
        for direction in options.directions:
            row = measure_in_process(name, direction, options.side)
            row["date"] = description["date"]
            rows[name, direction] = row
            print(row, flush=True)
    settings = {"tokens": options.side**2, "batch": 1, "dim": DIM, "heads": HEADS, "threads": 1}
    write_json(options.out, {**description, "settings": settings, "rows": list(rows.values())})


if __name__ == "__main__":
    main()
