"""Contrast of attention weights before training: how unevenly a query's weight is spread over keys.

    python -m reproduction.benchmarks.contrast                      # kernels: contrast.json
    python -m reproduction.benchmarks.contrast --data-dir data      # and contrast_in_layers.json

The contrast is the standard deviation of a query's weights over their mean. It is 0 for the plain
mean of all values.
"""

from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Generator, Tensor, nn

from reproduction.benchmarks.measurement import run_script, save_results
from teka.data import load
from teka.functional import Kernel, attention, draw_projection
from teka.functional.kernels import RANDOM_KERNELS, make_kernel
from teka.models import Performer
from teka.nn import Attention

FOLDER = Path(__file__).parent
DIM_HEAD, NUM_TOKENS, HEADS = 16, 196, 64
KERNELS = ("softmax", "squared_relu", "focused", "relu", "elu", "taylor2", "hedgehog")
RANDOM = (("positive", 44), ("positive", 176), ("optimal", 44), ("hyperbolic", 44))
# Options of the Performers of the studies `kernels` (images of 14 × 14) and `large` (28 × 28).
MODELS: list[dict[str, Any]] = [
    *({"image_size": 14, "kernel": name} for name in KERNELS),
    *({"image_size": 14, "kernel": name, "num_features": count} for name, count in RANDOM),
    *({"image_size": 28, "kernel": name} for name in ("softmax", "squared_relu", "focused")),
    {"image_size": 28, "kernel": "softmax", "query_key": "normalized"},
]


def make_kernels() -> dict[str, Kernel]:
    """Return the kernels by name. Kernels with random features have one draw."""
    generator = Generator().manual_seed(0)
    kernels: dict[str, Kernel] = {name: make_kernel(name, DIM_HEAD) for name in KERNELS}
    for name, num_features in RANDOM:
        projection = draw_projection(num_features, DIM_HEAD, generator=generator)
        kernels[f"{name}, m = {num_features}"] = RANDOM_KERNELS[name](projection.double())
    return kernels


def measure_kernel(kernel: Kernel, size: float) -> dict[str, float]:
    """Return numbers about the weights of normal queries and keys.

    They are the contrast, the share of the variance that depends on the query and not on the key
    alone ("query"), and the effective number of keys, 1 / Σ p² ("keys").
    """
    generator = Generator().manual_seed(1)
    shape = 2, 1, HEADS, NUM_TOKENS, DIM_HEAD
    query, key = size * torch.randn(shape, generator=generator, dtype=torch.float64)
    weights = kernel.weights(query, key, scale=DIM_HEAD**-0.5)
    weights = weights / weights.mean(dim=-1, keepdim=True)
    variance = (weights - 1).square().mean(dim=-1)
    query_variance = weights.var(dim=-2, correction=0).mean(dim=-1)
    return {
        "contrast": variance.sqrt().mean().item(),
        "query": (query_variance / variance.mean(dim=-1)).mean().item(),
        "keys": (NUM_TOKENS / (1 + variance)).mean().item(),
    }


def measure_layer(layer: Attention, arguments: tuple[Any, ...]) -> dict[str, float]:
    """Return the size of the queries, and the contrasts of the median query and the class token."""
    tokens, grid, _, num_prefix_tokens, *_ = arguments
    query, key, _ = layer.project(tokens)
    assert query is not None
    assert key is not None
    (group,) = layer.head_groups()
    places = {"grid": grid, "num_prefix_tokens": num_prefix_tokens}
    if group.relative is None:  # only the class token of the last layer is used
        places = {}
    # A weight is the output for values that are 1 at one key and 0 at all others.
    num_keys = key.shape[2]
    one_hot = torch.eye(num_keys).expand(*key.shape[:2], -1, -1)
    weights = attention(
        query, key, one_hot, kernel=group.kernel, relative=group.relative, backend="dense", **places
    )
    contrast = (num_keys * weights).std(dim=-1)
    return {
        "size": query.square().mean().sqrt().item(),
        "contrast": contrast.median().item(),
        "class_token": contrast[:, :, 0].mean().item(),
    }


def measure_model(images: Tensor, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the measurements of all layers of a new model."""
    model = Performer(
        in_channels=1,
        num_classes=10,
        dim=32,
        heads=2,
        depth=2,
        stem="convolution",
        periodic=True,
        rotary_normalizer=None if options["kernel"] == "softmax" else "features",
        **options,
    )
    layers = []

    def measure(layer: nn.Module, arguments: tuple[Any, ...]) -> None:
        layers.append({"layer": len(layers) + 1, **measure_layer(layer, arguments)})

    for module in model.modules():
        if isinstance(module, Attention):
            module.register_forward_pre_hook(measure)
    with torch.no_grad():
        model.eval()(images)
    return layers


def main(*, data_dir: str | None = None, out: Path = FOLDER) -> None:
    """Measure all kernels, and with MNIST the layers of new models.

    Args:
        data_dir: Folder of the data sets, or None to measure the kernels alone.
        out: Folder of the result files.
    """
    rows = [
        {"kernel": name, "size": size, **measure_kernel(kernel, size)}
        for size in (1.0, 3.0)
        for name, kernel in make_kernels().items()
    ]
    print(pd.DataFrame(rows).round(2).to_string())
    sizes = {"dim_head": DIM_HEAD, "num_tokens": NUM_TOKENS, "heads": HEADS}
    save_results(out / "contrast.json", **sizes, rows=rows)
    if data_dir is None:
        return
    rows = []
    for options in MODELS:
        dataset = load("mnist", data_dir=data_dir, image_size=options["image_size"])
        for seed in range(3):
            torch.manual_seed(seed)
            layers = measure_model(dataset.train.images[:4], options)
            rows += [{"model": str(options), **layer} for layer in layers]
    means = pd.DataFrame(rows).groupby(["model", "layer"], sort=False).mean()
    print(means.round(2).to_string())
    save_results(out / "contrast_in_layers.json", rows=means.reset_index().to_dict("records"))


if __name__ == "__main__":
    run_script(main)
