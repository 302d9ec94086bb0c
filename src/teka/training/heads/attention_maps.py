"""Attention of one token to all others, head by head and layer by layer."""

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from teka import functional
from teka.errors import wrong_value
from teka.grid import Grid
from teka.models import SelfAttentionNetwork
from teka.nn import Attention

BATCH = 10


def attention_maps(
    model: SelfAttentionNetwork,
    images: Float[Tensor, "batch channels height width"],
    query: tuple[int, int],
) -> tuple[NDArray[np.float64], ...]:
    """The weights that a token gives to all tokens in every head, the mean over images where content enters.

    Args:
        model: The network, in evaluation mode.
        images: Images; without content one is enough, and no other is looked at.
        query: Row and column of the token, from 0.

    Returns:
        For each layer the weights, of shape (heads, rows, columns), which add up to 1 in each head.

    Raises:
        ValueError: A query that is not on the grid, or no image.
    """
    sides = model.grid.shape
    if len(query) != 2 or not all(0 <= place < side for place, side in zip(query, sides, strict=True)):
        expected = f"a row from 0 to {sides[0] - 1} and a column from 0 to {sides[1] - 1}, in tokens"
        raise wrong_value("query", query, expected)
    if not len(images):
        raise wrong_value("images", 0, "one image or more")
    if all(layer.query is None for layer in model.attentions()):
        images = images[:1]
    sums: list[Tensor] = []
    found: list[Tensor] = []

    def keep(layer: Attention, inputs: tuple) -> None:
        found.append(attention_weights(layer, inputs[0], model.grid)[:, :, query[0] * sides[1] + query[1]])

    handles = [layer.register_forward_pre_hook(keep) for layer in model.attentions()]
    try:
        with torch.inference_mode():
            for batch in images.split(BATCH):
                found.clear()
                model(batch)
                added = [weights.double().sum(dim=0) for weights in found]
                sums = [one + more for one, more in zip(sums, added, strict=True)] if sums else added
    finally:
        for handle in handles:
            handle.remove()
    return tuple((one / len(images)).unflatten(-1, sides).numpy() for one in sums)


def attention_weights(
    layer: Attention, tokens: Float[Tensor, "batch tokens dim"], grid: Grid
) -> Float[Tensor, "batch heads tokens tokens"]:
    """The matrix of weights of every head: what attention makes of values that tell the tokens apart.

    Args:
        layer: A layer of the network.
        tokens: Its tokens.
        grid: Their grid.
    """
    num_tokens = tokens.shape[1]
    query, key, value = layer.project(tokens)
    each = torch.eye(num_tokens, dtype=value.dtype).expand(*value.shape[:2], -1, -1)
    (group,) = layer.head_groups()
    query, key, _ = group.part_of(query, key, value, num_tokens)
    return functional.attention(
        query, key, each, kernel=group.kernel, relative=group.relative, grid=grid, backend="dense"
    )
