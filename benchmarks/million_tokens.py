"""Push 1,024 × 1,024 tokens through one layer, forward and forward with backward, and note time and peak memory.

    python benchmarks/million_tokens.py [--side 1024] [--out benchmarks/million_tokens.json]

Every measurement is a process of its own, whose peak resident memory holds everything: the interpreter, the weights,
the tokens and their gradients.
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
from teka.files import write_json
from teka.nn import Attention
from teka.provenance import provenance

LAYERS = {
    "squared_relu": {"kernel": "squared_relu", "relative": None},
    "squared_relu-clipped": {"kernel": "squared_relu", "relative": "clipped"},
    "squared_relu-fourier": {"kernel": "squared_relu", "relative": "fourier"},
    "squared_relu-rotary": {"kernel": "squared_relu", "relative": "rotary"},
}
DIRECTIONS = ("forward", "forward_backward")


def measure(name: str, direction: str, side: int) -> dict[str, object]:
    """One pass in this process."""
    torch.manual_seed(0)
    layer = Attention(256, 8, **LAYERS[name])
    for parameter in layer.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter)
    backward = direction == "forward_backward"
    tokens = torch.randn(1, side**2, 256, requires_grad=backward)
    start = time.perf_counter()
    with torch.set_grad_enabled(backward):
        output = layer(tokens, Grid((side, side)))
        if backward:
            output.backward(torch.ones_like(output))
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    finite = bool(torch.isfinite(output).all())
    return {
        "layer": name,
        "direction": direction,
        "seconds": seconds,
        "peak_bytes": peak,
        "finite": finite,
    }


def main() -> None:
    """Measure every layer in both directions and write the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--side", type=int, default=1024)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/million_tokens.json"))
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(measure(*options.one, options.side)))
        return
    rows = []
    for name in LAYERS:
        for direction in DIRECTIONS:
            command = [
                sys.executable,
                __file__,
                "--side",
                str(options.side),
                "--one",
                name,
                direction,
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            last = done.stderr.strip().splitlines()[-1:]
            failed = {
                "layer": name,
                "direction": direction,
                "failed": f"exit {done.returncode}",
                "message": last,
            }
            rows.append(json.loads(done.stdout) if done.returncode == 0 else failed)
            print(rows[-1])
    command = f"python benchmarks/million_tokens.py --side {options.side}"
    settings = {
        "tokens": options.side**2,
        "batch": 1,
        "dim": 256,
        "heads": 8,
        "threads": torch.get_num_threads(),
    }
    write_json(options.out, {**provenance(command), "settings": settings, "rows": rows})


if __name__ == "__main__":
    main()
