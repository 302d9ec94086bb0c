"""Measurements of where the attention heads of a network attend."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from reproduction.baselines import SelfAttentionNetwork
from reproduction.baselines.blocks import Images
from reproduction.baselines.self_attention_network import make_relative_kernel
from teka.functional import attention
from teka.functional.positions import Positions
from teka.functional.relative.stationary import StationaryRelativeKernel
from teka.functional.shapes import Keys, Queries
from teka.grid import Grid
from teka.nn import Attention
from teka.nn.inputs import Tokens
from teka.nn.relative import RelativeModule

LOCAL_WEIGHT = 0.5
CHANCE_DRAWS = 200
BATCH_SIZE = 10
RESEMBLANCE_METRICS = ("local", "distinct", "window_3", "window_5", "spread", "distance")


def find_middle_token(grid: Grid) -> int:
    """Return the index of the middle token of a grid."""
    height, width = grid.shape
    return height // 2 * width + width // 2


def measure_attended_offsets(layers: Sequence[RelativeModule], grid: Grid) -> dict[str, Tensor]:
    """Measure to which offsets from the query each head attends, ignoring the content.

    The query is the token in the middle of the grid. An offset (row, column) is the position of a
    key minus the position of the query, in tokens.

    Args:
        layers: Relative kernel of every layer.
        grid: Grid of the tokens.

    Returns:
        - "center": center of each head's Gaussian, or NaN for other kernels.
        - "mean", "covariance": mean and covariance of each head's offsets, weighted by attention.
        - "offset", "weight": offset with the largest attention weight of each head, and the weight.
        - The results of `measure_resemblance_to_convolution` for each layer.
    """
    heads = [_measure_layer(layer, grid) for layer in layers]
    summaries = [measure_resemblance_to_convolution(layer) for layer in heads]
    by_head = {name: torch.cat([layer[name] for layer in heads]) for name in heads[0]}
    by_layer = {
        name: torch.stack([layer[name] for layer in summaries]) for name in RESEMBLANCE_METRICS
    }
    return by_head | by_layer


@torch.no_grad()
def _measure_layer(layer: RelativeModule, grid: Grid) -> dict[str, Tensor]:
    positions = Positions(grid)
    query = torch.tensor([find_middle_token(grid)])
    offsets = -positions.pairwise_offsets(torch.zeros(2, dtype=torch.float64), query)[0]
    relative = copy.deepcopy(layer).cpu()()
    placed = relative.adapt_to_positions(positions)
    assert isinstance(placed, StationaryRelativeKernel)
    weights = placed.log_weight_at(-offsets).double().softmax(dim=-1)
    mean = weights @ offsets
    deviations = offsets - mean[:, None]
    largest, index = weights.max(dim=-1)
    return {
        "center": getattr(relative, "center", torch.full_like(mean, torch.nan)).detach().double(),
        "mean": mean,
        "covariance": torch.einsum("hj,hja,hjb->hab", weights, deviations, deviations),
        "offset": offsets[index].round().long(),
        "weight": largest,
    }


def measure_resemblance_to_convolution(heads: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Measure how closely the heads of one layer resemble a convolution.

    Nine heads form a 3 × 3 convolution if each of them attends to a different offset in a 3 × 3
    window.

    Args:
        heads: Measurements of the heads of one layer, as in `measure_attended_offsets`.

    Returns:
        - "local": number of heads with at least half of their attention weight on one token.
        - "distinct": number of different offsets with the largest weight of a head.
        - "window_3", "window_5": number of these offsets in a 3 × 3 and a 5 × 5 window.
        - "spread": standard deviation of the attention in its widest direction, in tokens, as the
          median over heads.
        - "distance": distance of the mean of the attention from the query, in tokens, as the median
          over heads.
    """
    offset = heads["offset"]
    distance = offset.abs().amax(dim=-1)
    (down, diagonal), (_, right) = heads["covariance"].permute(1, 2, 0)
    # The larger eigenvalue in closed form, because a decomposition raises an error for NaN.
    widest = ((down + right) / 2 + torch.hypot((down - right) / 2, diagonal)).sqrt()
    summary = {
        "local": (heads["weight"] >= LOCAL_WEIGHT).sum(),
        "distinct": len(offset.unique(dim=0)),
        "window_3": len(offset[distance <= 1].unique(dim=0)),
        "window_5": len(offset[distance <= 2].unique(dim=0)),
        "spread": widest.quantile(0.5),
        "distance": heads["mean"].norm(dim=-1).quantile(0.5),
    }
    return {name: torch.as_tensor(value) for name, value in summary.items()}


def measure_resemblance_by_chance(
    run: Any, num_heads: Sequence[int], grid: Grid
) -> dict[str, NDArray]:
    """Measure how closely untrained layers with random parameters resemble a convolution.

    Trained layers are compared with this baseline.

    Args:
        run: Run with the options `position` and `dim` of the layers.
        num_heads: Number of heads of each layer.
        grid: Grid of the tokens.

    Returns:
        The results of `measure_resemblance_to_convolution` for each layer, as means over 200 random
        initializations. The names have the prefix "chance_".
    """
    chance = {}
    for heads in set(num_heads):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            draws = [
                make_relative_kernel(
                    run.position, heads=heads, sides=grid.shape, embedding_dim=run.dim
                )
                for _ in range(CHANCE_DRAWS)
            ]
        numbers = measure_attended_offsets(draws, grid)
        chance[heads] = [numbers[name].double().mean().item() for name in RESEMBLANCE_METRICS]
    columns = np.transpose([chance[heads] for heads in num_heads])
    return {
        f"chance_{name}": column for name, column in zip(RESEMBLANCE_METRICS, columns, strict=True)
    }


def compute_attention_maps(model: SelfAttentionNetwork, images: Images) -> list[NDArray]:
    """Return each layer's attention map for the middle token, averaged over images.

    Args:
        model: The network.
        images: Input images. They matter only if the heads also attend by content.

    Returns:
        For each layer an array of shape (heads, rows, columns). The weights of a head sum to 1.
    """
    query = find_middle_token(model.grid)
    sums: dict[Attention, Tensor] = {}

    def add_weights(layer: Attention, inputs: tuple[Tensor]) -> None:
        weights = compute_layer_attention_weights(layer, inputs[0], model.grid)[:, :, query]
        sums[layer] = sums.get(layer, 0) + weights.double().sum(dim=0)

    hooks = [layer.register_forward_pre_hook(add_weights) for layer in model.attention_layers()]
    with torch.inference_mode():
        for batch in images.split(BATCH_SIZE):
            model(batch)
    for hook in hooks:
        hook.remove()
    return [
        (total / len(images)).unflatten(-1, model.grid.shape).numpy() for total in sums.values()
    ]


def compute_layer_attention_weights(
    layer: Attention, tokens: Tokens, grid: Grid
) -> Float[Tensor, "batch heads tokens tokens"]:
    """Return the attention weights of a layer for the given input tokens."""
    (group,) = layer.head_groups()
    query, key, _ = group.select_heads(*layer.project(tokens), tokens.shape[1])
    return compute_attention_weights(
        query, key, kernel=group.kernel, relative=group.relative, grid=grid
    )


def compute_attention_weights(
    query: Queries, key: Keys, **options: Any
) -> Float[Tensor, "batch heads queries keys"]:
    """Return the attention weights for the given queries and keys.

    The weights are computed as the attention output for one-hot values.

    Args:
        query: Queries.
        key: Keys.
        options: Options of `teka.functional.attention`, such as `kernel`.
    """
    one_hot = torch.eye(key.shape[2], dtype=key.dtype).expand(*key.shape[:2], -1, -1)
    return attention(query, key, one_hot, backend="dense", **options)
