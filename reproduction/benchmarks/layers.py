"""Time the default attention layer against plain PyTorch and other libraries.

    python reproduction/benchmarks/layers.py                          # all sizes; adds this processor to reproduction/benchmarks/layers.json
    python reproduction/benchmarks/layers.py --tokens 64 256 --seconds 2 --out /tmp/layers.json
    python reproduction/benchmarks/layers.py --table                  # print the tables of the committed times

All layers take turns in one process on one thread, forward, and forward with the gradients of tokens and weights. Each
time is a median in milliseconds. "four products" is the cost of the four linear projections of a layer alone.

The layers of other libraries run if these are installed:

    pip install rotary-embedding-torch performer-pytorch
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import teka

DIM, HEADS, BATCH = 256, 8, 2
TOKENS = [64, 196, 256, 1024, 4096, 16384]
# Fewer tokens are timed without torch.compile only.
MIN_COMPILED_TOKENS = 196
MIN_ROUNDS = 3
UNIT = "four products"
OUT = Path(__file__).with_name("layers.json")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class FourProducts(nn.Module):
    """The four projections of an attention layer and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.projections = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, tokens: Tensor) -> Tensor:
        query, key, value, output = self.projections
        return output(query(tokens) + key(tokens) + value(tokens))


class PlainLayer(FourProducts):
    """The default layer in twenty lines: squared relu features, rotated, with the bounded denominator."""

    def __init__(self) -> None:
        super().__init__()
        self.frequency = nn.Parameter(torch.randn(HEADS, DIM // HEADS // 2))

    def forward(self, tokens: Tensor) -> Tensor:
        angle = torch.arange(tokens.shape[1])[:, None] * self.frequency[:, None]
        cosine, sine = angle.cos(), angle.sin()
        query, key, value = (
            projection(tokens).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for projection in self.projections[:3]
        )
        query_features, key_features = (x.relu().square() + 1e-6 for x in (query, key))
        rotated_query, query_length = rotate(query_features, cosine, sine)
        rotated_key, key_length = rotate(key_features, cosine, sine)
        numerator = rotated_query @ (rotated_key.transpose(-2, -1) @ value)
        denominator = 0.7 * query_features @ key_features.sum(dim=-2)[..., None]
        denominator = denominator + 0.3 * query_length @ key_length.sum(dim=-2)[..., None]
        return self.projections[3]((numerator / denominator).transpose(1, 2).flatten(2))


def rotate(features: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
    """Return the features with half-split pairs rotated, and the pairs' norms."""
    first, second = features.chunk(2, dim=-1)
    rotated = torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)
    return rotated, (first.square() + second.square()).sqrt()


class DefaultLayer(nn.Module):
    """`teka.nn.Attention` with its defaults on a line of tokens."""

    def __init__(self, *, causal: bool = False) -> None:
        super().__init__()
        self.attention = teka.nn.Attention(DIM, HEADS, num_axes=1, causal=causal)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.attention(tokens, teka.Grid(tokens.shape[1]))


class SelfAttention(nn.Module):
    """`torch.nn.MultiheadAttention` of tokens with themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(DIM, HEADS, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.attention(tokens, tokens, tokens, need_weights=False)[0]


class RotarySoftmax(FourProducts):
    """Softmax attention of PyTorch with the rotary embedding of rotary-embedding-torch."""

    def __init__(self) -> None:
        from rotary_embedding_torch import RotaryEmbedding

        super().__init__()
        self.rotary = RotaryEmbedding(dim=DIM // HEADS)

    def forward(self, tokens: Tensor) -> Tensor:
        query, key, value = (
            projection(tokens).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for projection in self.projections[:3]
        )
        query, key = (self.rotary.rotate_queries_or_keys(x) for x in (query, key))
        mixed = scaled_dot_product_attention(query, key, value)
        return self.projections[3](mixed.transpose(1, 2).flatten(2))


def make_layers(dtype: torch.dtype) -> dict[str, nn.Module]:
    """Return every layer that is installed, by its name."""
    layers: dict[str, nn.Module] = {
        UNIT: FourProducts(),
        "teka": DefaultLayer(),
        "teka, causal": DefaultLayer(causal=True),
        "plain": PlainLayer(),
        "MultiheadAttention": SelfAttention(),
    }
    if find_spec("rotary_embedding_torch"):
        layers["SDPA + rotary"] = RotarySoftmax()
    if find_spec("performer_pytorch"):
        from performer_pytorch import SelfAttention as PerformerAttention

        layers["performer-pytorch"] = PerformerAttention(
            dim=DIM, heads=HEADS, dim_head=DIM // HEADS, causal=False
        )
    return {name: layer.to(dtype) for name, layer in layers.items()}


def run(layer: nn.Module, parameters: list[nn.Parameter], tokens: Tensor, backward: bool) -> None:
    """Run one pass, with the gradients of tokens and weights if asked."""
    if not backward:
        with torch.no_grad():
            layer(tokens)
        return
    leaf = tokens.detach().requires_grad_()
    torch.autograd.grad(layer(leaf).sum(), [leaf, *parameters], allow_unused=True)


def make_steps(
    layers: dict[str, nn.Module], tokens: Tensor, *, backward: bool
) -> dict[str, Callable[[], None]]:
    """Return a function for each layer, and one for its compiled form. Each has run once; what fails is left out."""
    forms = dict(layers)
    if tokens.shape[1] >= MIN_COMPILED_TOKENS:
        for name, layer in layers.items():
            forms[f"{name}, compiled"] = torch.compile(layer, dynamic=False)
    steps = {}
    for name, layer in forms.items():
        learned = [parameter for parameter in layer.parameters() if parameter.requires_grad]
        step = partial(run, layer, learned, tokens, backward)
        try:
            step()
        except Exception as error:
            print(f"{name} failed: {type(error).__name__}: {str(error).splitlines()[0]}")
            continue
        steps[name] = step
    return steps


def interleaved_medians(
    steps: dict[str, Callable[[], None]], seconds: float, clock: Callable[[], float]
) -> dict[str, float]:
    """Return the median time of each step in milliseconds.

    The steps take turns. A step leaves the rounds when it has taken `seconds`, but not before three rounds.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    remaining = dict(steps)
    while remaining:
        for name, step in list(remaining.items()):
            start = clock()
            step()
            times[name].append(clock() - start)
            if sum(times[name]) >= seconds and len(times[name]) >= MIN_ROUNDS:
                del remaining[name]
    return {name: round(1e3 * statistics.median(values), 4) for name, values in times.items()}


def processor() -> str:
    """Return the model name of this machine's processor."""
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def table(rows: list[dict]) -> str:
    """Return the times as Markdown: milliseconds, and in brackets multiples of the four products."""
    lines = []
    for backward in (False, True):
        chosen = [row for row in rows if row["backward"] == backward]
        if not chosen:
            continue
        names = list(dict.fromkeys(name for row in chosen for name in row["ms"]))
        lines.append("forward and backward" if backward else "forward")
        lines.append("")
        lines.append("| layer | " + " | ".join(f"{row['tokens']:,}" for row in chosen) + " |")
        lines.append("|---|" + "---|" * len(chosen))
        for name in names:
            cells = []
            for row in chosen:
                ms = row["ms"].get(name)
                cells.append("" if ms is None else f"{ms:.3g} ({ms / row['ms'][UNIT]:.2f})")
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Time all layers and add the results of this processor to the file, or print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--seconds", type=float, default=5.0, help="time of each layer and size")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--layers", nargs="+", help="names of layers, in addition to four products")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="time of the processor instead of the wall, for a machine that also does other work",
    )
    parser.add_argument("--table", action="store_true", help="print the tables of the file")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    saved = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    if arguments.table:
        for name, result in saved.items():
            print(f"{name}\n\n{table(result['times'])}")
        return
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dtype = DTYPES[arguments.dtype]
    layers = make_layers(dtype)
    if arguments.layers:
        layers = {
            name: layer for name, layer in layers.items() if name in [UNIT, *arguments.layers]
        }
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    name = processor() if dtype == torch.float32 else f"{processor()}, {arguments.dtype}"
    rows: list[dict] = []
    saved[name] = {
        "torch": torch.__version__,
        "threads": 1,
        "clock": "process" if arguments.cpu_time else "wall",
        "batch": BATCH,
        "dim": DIM,
        "heads": HEADS,
        "times": rows,
    }
    for num_tokens in arguments.tokens:
        tokens = torch.randn(BATCH, num_tokens, DIM, dtype=dtype)
        for backward in (False, True):
            torch.compiler.reset()
            steps = make_steps(layers, tokens, backward=backward)
            medians = interleaved_medians(steps, arguments.seconds, clock)
            rows.append({"tokens": num_tokens, "backward": backward, "ms": medians})
            print(table(rows[-1:]), flush=True)
            # After each size, because the largest sizes take many minutes.
            arguments.out.write_text(json.dumps(saved, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
