"""What `measure_responses` costs over the bare forward passes it needs: 1,000 MNIST images, every shift of −8 … 8.

    python reproduction/benchmarks/audit.py [--models convnet performer dense] [--images 1000] [--threads 1]

writes reproduction/benchmarks/audit.json and reproduction/benchmarks/audit.md. The models are small, so that there is little to hide the cost
behind. After every 20 calls of the measurement the model alone is given the same 20 batches again, so that both sides
of a ratio are measured within seconds of each other. Seconds are the processor's for this process, which other work on
the machine changes less than those of the clock.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from teka.audit.measure.measure_responses import measure_responses
from teka.audit.movement import Movement
from teka.audit.shifts import square_shifts
from teka.data import load
from teka.files import write_bytes, write_json
from teka.models import Performer
from teka.provenance import provenance

MAX_SHIFT, BATCH_SIZE, BLOCK = 8, 256, 20
COLUMNS = (
    "model",
    "output",
    "mode",
    "calls",
    "ratio",
    "lower",
    "upper",
    "total",
    "within",
    "bare_seconds",
    "seconds",
)


def convnet() -> nn.Module:
    """Two convolutions with pooling and a linear layer: 20,490 parameters, strided, with zero padding."""
    layers = (
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
    )
    return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 7 * 7, 10))


def performer() -> nn.Module:
    """teka's default Performer on patches of 4 pixels: 49 tokens, dim 64, 2 blocks."""
    return Performer(28, 1, 10, dim=64, depth=2, heads=4, patch_size=4, pool="mean")


def dense() -> nn.Module:
    """Three convolutions with circular padding, whose output is a map of ten channels."""
    widths = ((1, 16), (16, 16), (16, 10))
    convolutions = [
        nn.Conv2d(before, after, 3, padding=1, padding_mode="circular") for before, after in widths
    ]
    return nn.Sequential(convolutions[0], nn.ReLU(), convolutions[1], nn.ReLU(), convolutions[2])


MODELS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "convnet": (convnet, "zero"),
    "performer": (performer, "circular"),
    "dense": (dense, "circular"),
}


class Blocks:
    """Keeps the batches of a block of calls, and gives them to the model alone once the block is over."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.batches = model, []
        self.measured: list[float] = []
        self.bare: list[float] = []
        self.inside = 0.0
        self.since = time.process_time()

    def __call__(self, batch: Tensor) -> Tensor:
        """The model's output."""
        self.batches.append(batch)
        start = time.process_time()
        output = self.model(batch)
        self.inside += time.process_time() - start
        return output

    def progress(self, done: int, total: int, seconds_left: float) -> None:
        """At the end of a block, the model alone."""
        if len(self.batches) == BLOCK or done == total:
            start = time.process_time()
            self.measured.append(start - self.since)
            with torch.inference_mode():
                for batch in self.batches:
                    self.model(batch)
            self.batches = []
            self.since = time.process_time()
            self.bare.append(self.since - start)


def measure(name: str, images: Tensor, labels: Tensor) -> dict[str, object]:
    """The ratio of one model: its median and quartiles over the blocks, and of the whole."""
    torch.manual_seed(0)
    make, mode = MODELS[name]
    model = make().eval()
    with torch.inference_mode():
        model(images[:BATCH_SIZE])
    blocks = Blocks(model)
    shifts = square_shifts(MAX_SHIFT)
    responses = measure_responses(
        blocks,
        images,
        shifts,
        Movement(mode),
        labels=labels,
        batch_size=BATCH_SIZE,
        progress=blocks.progress,
    )
    # What follows the last call, the ordering of the answers, counts too.
    blocks.measured[-1] += time.process_time() - blocks.since
    ratios = [one / other for one, other in zip(blocks.measured, blocks.bare, strict=True)]
    lower, median, upper = statistics.quantiles(ratios, n=4)
    return {
        "model": name,
        "output": responses.output,
        "mode": mode,
        "calls": responses.calls,
        "ratio": median,
        "lower": lower,
        "upper": upper,
        "total": sum(blocks.measured) / sum(blocks.bare),
        "within": sum(blocks.measured) / blocks.inside,
        "bare_seconds": sum(blocks.bare),
        "seconds": sum(blocks.measured),
    }


def markdown(rows: list[dict[str, object]], settings: dict[str, object], hardware: object) -> str:
    """The rows as a table."""
    lines = [
        f"Cost of the full 17 × 17 square on {settings['images']} images over the bare forward passes: median over "
        f"blocks of {BLOCK} calls with its quartiles, and of the whole; within: over the same calls, as timed "
        f"within the measurement. Seconds of the processor. {hardware}. {settings['note']}",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
    ]
    for row in rows:
        cells = (
            f"{row[name]:.3f}" if isinstance(row[name], float) else str(row[name])
            for name in COLUMNS
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure every model and write both files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--note", default="", help="what else ran on the machine")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    test = load("mnist", data_dir=options.data_dir).test
    settings: dict[str, object] = {
        "images": options.images,
        "shifts": (2 * MAX_SHIFT + 1) ** 2,
        "batch_size": BATCH_SIZE,
        "threads": options.threads,
        "note": options.note,
    }
    made, rows = (
        provenance(" ".join(["python", "reproduction/benchmarks/audit.py", *sys.argv[1:]])),
        [],
    )
    for name in options.models:
        rows.append(measure(name, test.images[: options.images], test.labels[: options.images]))
        print(rows[-1], flush=True)
        write_json(options.out, {**made, "settings": settings, "rows": rows})
        write_bytes(
            options.out.with_suffix(".md"), markdown(rows, settings, made["hardware"]).encode()
        )


if __name__ == "__main__":
    main()
