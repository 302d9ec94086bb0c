"""Time the default attention layer against plain PyTorch and other libraries.

    python benchmarks/layers.py                          # all sizes; adds this processor to benchmarks/layers.json
    python benchmarks/layers.py --tokens 64 256 --rounds 3 --out /tmp/layers.json

All layers run interleaved in one process on one thread; each time is a median in milliseconds. "four products" is the
cost of the four linear projections alone. Layers of rotary-embedding-torch and performer-pytorch run if installed.
"""

import argparse
import json
import math
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
OUT = Path(__file__).with_name("layers.json")


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


def make_layers() -> dict[str, nn.Module]:
    """Return every layer that is installed, by its name."""
    default, plain = DefaultLayer(), PlainLayer()
    layers: dict[str, nn.Module] = {
        "four products": FourProducts(),
        "teka": default,
        "teka, compiled": torch.compile(default),
        "teka, causal": DefaultLayer(causal=True),
        "plain": plain,
        "plain, compiled": torch.compile(plain),
        "MultiheadAttention": SelfAttention(),
    }
    if find_spec("rotary_embedding_torch"):
        layers["SDPA + rotary"] = RotarySoftmax()
    if find_spec("performer_pytorch"):
        from performer_pytorch import SelfAttention as PerformerAttention

        layers["performer-pytorch"] = PerformerAttention(
            dim=DIM, heads=HEADS, dim_head=DIM // HEADS, causal=False
        )
    return layers


def run(layer: nn.Module, tokens: Tensor, *, backward: bool) -> None:
    """Run one pass, with the gradients of tokens and weights if asked."""
    if not backward:
        with torch.no_grad():
            layer(tokens)
        return
    leaf = tokens.detach().requires_grad_()
    layer(leaf).sum().backward()


def interleaved_medians(steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Return the median time of each step in milliseconds, in rounds over all steps."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: round(statistics.median(values), 4) for name, values in times.items()}


def processor() -> str:
    """Return the model name of this machine's processor."""
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def main() -> None:
    """Time all layers and add the results of this processor to the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 256, 1024, 4096, 16384])
    parser.add_argument("--rounds", type=int, default=0, help="0 chooses by the number of tokens")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = make_layers()
    rows = []
    for num_tokens in arguments.tokens:
        torch.compiler.reset()
        tokens = torch.randn(BATCH, num_tokens, DIM)
        rounds = arguments.rounds or min(100, max(5, math.ceil(20000 / num_tokens)))
        for backward in (False, True):
            steps = {
                name: partial(run, layer, tokens, backward=backward)
                for name, layer in layers.items()
            }
            medians = interleaved_medians(steps, rounds)
            row = {"tokens": num_tokens, "backward": backward, "rounds": rounds, "ms": medians}
            rows.append(row)
            unit = medians["four products"]
            ratios = ", ".join(f"{name} {ms / unit:.2f}" for name, ms in medians.items())
            print(f"{num_tokens} tokens, {'both passes' if backward else 'forward'}: {ratios}")
    saved = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    saved[processor()] = {
        "torch": torch.__version__,
        "threads": 1,
        "batch": BATCH,
        "dim": DIM,
        "heads": HEADS,
        "times": rows,
    }
    arguments.out.write_text(json.dumps(saved, indent=2) + "\n")


if __name__ == "__main__":
    main()
