"""Benchmark of teka's attention layer against plain PyTorch and other libraries.

    python -m reproduction.benchmarks.layers             # adds this machine to layers.json
    python -m reproduction.benchmarks.layers --table     # prints the committed times
    python -m reproduction.benchmarks.layers --tokens 64 256 --seconds 1 --out /tmp/layers.json
    python -m reproduction.benchmarks.layers --layers teka "positive × rotation_joint"

Two of the layers need other libraries:

    pip install rotary-embedding-torch performer-pytorch
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from reproduction.baselines.blocks import join_heads, project_heads
from reproduction.benchmarks.measurement import measure_median_times, run_script
from teka import Grid
from teka.files import read_json, write_json
from teka.nn import Attention
from teka.provenance import gather_provenance

DIM, HEADS, DIM_HEAD, BATCH = 256, 8, 32, 2
# With fewer tokens, layers are not timed with torch.compile.
MIN_COMPILED_TOKENS = 196
UNIT = "four products"
OUT = Path(__file__).with_suffix(".json")


class LinearLayersOfAttention(nn.Module):
    """The four linear layers of an attention layer, without the attention itself.

    Their time is the unit in which the benchmark expresses the times of all layers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.projections = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, tokens: Tensor) -> Tensor:
        query, key, value, output = self.projections
        return output(query(tokens) + key(tokens) + value(tokens))

    def project_tokens(self, tokens: Tensor) -> list[Tensor]:
        """Return the queries, keys and values of all heads."""
        return [project_heads(linear, tokens, DIM_HEAD) for linear in self.projections[:3]]


class PlainPyTorchLayer(LinearLayersOfAttention):
    """Plain PyTorch version of teka's default layer, without masks and overflow protection."""

    def __init__(self) -> None:
        super().__init__()
        self.frequency = nn.Parameter(torch.randn(HEADS, DIM_HEAD // 2))

    def forward(self, tokens: Tensor) -> Tensor:
        angle = torch.arange(tokens.shape[1])[:, None] * self.frequency[:, None]
        query, key, value = self.project_tokens(tokens)
        query_features, key_features = (x.relu().square() + 1e-6 for x in (query, key))
        rotated_query, query_norm = rotate_feature_pairs(query_features, angle.cos(), angle.sin())
        rotated_key, key_norm = rotate_feature_pairs(key_features, angle.cos(), angle.sin())
        numerator = rotated_query @ (rotated_key.transpose(-2, -1) @ value)
        denominator = 0.7 * query_features @ key_features.sum(dim=-2)[..., None]
        denominator = denominator + 0.3 * query_norm @ key_norm.sum(dim=-2)[..., None]
        return join_heads(self.projections[3], numerator / denominator)


def rotate_feature_pairs(features: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate pairs of features by angles that are given by their cosines and sines.

    The pairs are half-split: feature i of d features forms a pair with feature i + d/2.

    Returns:
        The rotated features, and the norm of each pair.
    """
    first, second = features.chunk(2, dim=-1)
    rotated = torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)
    return rotated, (first.square() + second.square()).sqrt()


class TekaLayer(nn.Module):
    """`teka.nn.Attention` for tokens on a line or a square grid."""

    def __init__(self, num_axes: int = 1, **options: Any) -> None:
        super().__init__()
        self.num_axes = num_axes
        self.attention = Attention(DIM, HEADS, num_axes=num_axes, **options)

    def forward(self, tokens: Tensor) -> Tensor:
        side = round(tokens.shape[1] ** (1 / self.num_axes))
        return self.attention(tokens, Grid((side,) * self.num_axes))


class SelfAttention(nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention` as self-attention."""

    def __init__(self) -> None:
        super().__init__(DIM, HEADS, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:  # pyright: ignore
        return super().forward(tokens, tokens, tokens, need_weights=False)[0]


class RotarySoftmax(LinearLayersOfAttention):
    """PyTorch's softmax attention with rotary positions from rotary-embedding-torch."""

    def __init__(self) -> None:
        from rotary_embedding_torch import RotaryEmbedding

        super().__init__()
        self.rotary = RotaryEmbedding(dim=DIM_HEAD)

    def forward(self, tokens: Tensor) -> Tensor:
        query, key, value = self.project_tokens(tokens)
        query, key = (self.rotary.rotate_queries_or_keys(x) for x in (query, key))
        heads = scaled_dot_product_attention(query, key, value)
        return join_heads(self.projections[3], heads)


def make_performer() -> nn.Module:
    """Create the self-attention layer of performer-pytorch."""
    from performer_pytorch import SelfAttention as PerformerAttention

    return PerformerAttention(dim=DIM, heads=HEADS, dim_head=DIM_HEAD, causal=False)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    UNIT: LinearLayersOfAttention,
    "teka": TekaLayer,
    "teka, causal": partial(TekaLayer, causal=True),
    "plain": PlainPyTorchLayer,
    "MultiheadAttention": SelfAttention,
    "SDPA + rotary": RotarySoftmax,
    "performer-pytorch": make_performer,
}


def make_layer(name: str) -> nn.Module:
    """Create an attention layer by its name in `LAYERS`, such as "plain".

    Any other name has the form "relu × rotary" and selects teka's layer with this content kernel
    and this relative kernel.
    """
    if name in LAYERS:
        return LAYERS[name]()
    kernel, _, relative = name.partition(" × ")
    return TekaLayer(num_axes=2, kernel=kernel, relative=relative or None)


def run_layer(layer: nn.Module, tokens: Tensor, backward: bool) -> None:
    """Run a layer's forward pass and, if `backward` is true, its backward pass."""
    if not backward:
        with torch.no_grad():
            layer(tokens)
        return
    layer(tokens.detach().requires_grad_()).sum().backward()
    layer.zero_grad()


def time_layers(
    layers: Mapping[str, nn.Module], num_tokens: int, backward: bool, seconds: float
) -> dict[str, float]:
    """Return the median time of each layer in milliseconds, with and without compilation."""
    variants: dict[str, Any] = dict(layers)
    if num_tokens >= MIN_COMPILED_TOKENS:
        torch.compiler.reset()
        for name, layer in layers.items():
            variants[f"{name}, compiled"] = torch.compile(layer, dynamic=False)
    inputs = torch.randn(BATCH, num_tokens, DIM)
    steps = {name: partial(run_layer, layer, inputs, backward) for name, layer in variants.items()}
    medians = measure_median_times(steps, seconds)
    return {name: round(1e3 * median, 4) for name, median in medians.items()}


def print_time_tables(measurements: Sequence[dict[str, Any]]) -> None:
    """Print each layer's time for each number of tokens, and its ratio to the linear layers."""
    for backward, direction in ((False, "forward"), (True, "forward and backward")):
        columns = {row["tokens"]: row["ms"] for row in measurements if row["backward"] == backward}
        table = pd.DataFrame(columns)
        print(f"\n{direction}, ms\n{table.to_string(float_format='{:.3g}'.format)}")
        print(f"\n{direction}, multiples of the {UNIT}\n{(table / table.loc[UNIT]).round(2)}")


def main(
    *,
    tokens: Sequence[int] = (64, 196, 256, 1024, 4096, 16384),
    layers: Sequence[str] = tuple(LAYERS),
    seconds: float = 5.0,
    table: bool = False,
    out: Path = OUT,
) -> None:
    """Time attention layers on this machine, and add the times to the result file.

    Args:
        tokens: Sequence lengths. They must be square numbers for "KERNEL × RELATIVE".
        layers: Names of layers, or "KERNEL × RELATIVE" for teka's layer with these kernels.
        seconds: Mean total time per layer and measurement.
        table: Print the times in the result file without measuring.
        out: Result file.
    """
    saved: dict[str, Any] = read_json(out) if out.exists() else {}
    if not table:
        modules = {name: make_layer(name) for name in (UNIT, *layers)}
        about = gather_provenance("")
        rows: list[dict[str, Any]] = []
        settings = {"batch": BATCH, "dim": DIM, "heads": HEADS}
        saved[f"{about['hardware']}, float32"] = {**about, **settings, "times": rows}
        for num_tokens, backward in product(tokens, (False, True)):
            milliseconds = time_layers(modules, num_tokens, backward, seconds)
            rows.append({"tokens": num_tokens, "backward": backward, "ms": milliseconds})
            print(rows[-1], flush=True)
            # Save after each measurement, because the largest inputs take many minutes.
            write_json(out, saved)
    for machine, result in saved.items():
        print(f"\n{machine}")
        print_time_tables(result["times"])


if __name__ == "__main__":
    run_script(main)
