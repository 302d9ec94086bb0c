"""teka's kernels as attention implementations of transformers."""

import weakref
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, bidirectional_mask_function, causal_mask_function

from teka.errors import wrong_value
from teka.functional.kernel import DETERMINISTIC_KERNELS, RANDOM_KERNELS
from teka.grid import Grid, present_grid
from teka.integrations.transformers.cache import StateLayer
from teka.nn import AttentionHeads

NAME = "teka"
OWN = "teka:own"  # by the heads that a layer has, and by softmax where it has none
DEFAULT = ("squared_relu", "rotary")  # what the name alone means
# Relative kernels that are something before anything is learned. Others are for `teka.convert.replace_attention`.
RELATIVES = (None, "rotary", "alibi", "decay")
OWN_HEADS = "teka_heads"  # the attribute of a layer that holds what `teka.convert.replace_attention` gave it
MOST_PREFIX_TOKENS = 16  # class and register tokens; more is a sign of another grid

# Heads by the layer that attends, for the kernels of a name: no parameters of the model, and the same in every process.
_heads: "weakref.WeakKeyDictionary[nn.Module, dict[tuple, AttentionHeads]]" = weakref.WeakKeyDictionary()


def register_attention() -> None:
    """Register "teka", "teka:KERNEL" and "teka:KERNEL-RELATIVE", for every pair that fits, and their masks."""
    for name, pair in {OWN: None, **_implementations()}.items():
        AttentionInterface.register(name, partial(attend, pair=pair))
        AttentionMaskInterface.register(name, padding_mask)


@cache
def _implementations() -> dict[str, tuple[str, str | None]]:
    names: dict[str, tuple[str, str | None]] = {NAME: DEFAULT}
    for kernel in (*DETERMINISTIC_KERNELS, *RANDOM_KERNELS):
        for relative in RELATIVES:
            try:
                _make_heads(8, 2, 1, (kernel, relative))
            except ValueError:
                continue
            names[f"{NAME}:{kernel}" + ("" if relative is None else f"-{relative}")] = (kernel, relative)
    return names


def attend(
    module: nn.Module,
    query: Float[Tensor, "batch heads queries dim"],
    key: Float[Tensor, "batch heads keys dim"],
    value: Float[Tensor, "batch heads keys dim_value"],
    attention_mask: Shaped[Tensor, "..."] | None,
    *,
    pair: tuple[str, str | None] | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **_: object,  # what transformers hands to every implementation
) -> tuple[Float[Tensor, "batch queries heads dim_value"], None]:
    """Attention as `AttentionInterface` calls it, by a pair of kernels, or with None by the layer's own heads.

    Tokens are the cells of `teka.on`, or of the config's patches after class tokens, or stand in a row. Dropout acts on
    the output. With a `StateCache` each call goes on from what the tokens before have left.
    """
    causal = getattr(module, "is_causal", False) if is_causal is None else is_causal
    state_layer = getattr(key, "state_layer", None)
    key, value = (one.repeat_interleave(query.shape[1] // one.shape[1], dim=1) for one in (key, value))
    grid, prefix = (None, 0) if causal else _grid_of(module, key.shape[2])
    heads = getattr(module, OWN_HEADS, None) if pair is None else None
    if not isinstance(heads, AttentionHeads):
        heads = _heads_of(module, query, grid, pair or ("softmax", None))
    elif heads.grid is not None:
        grid, prefix = None, 0
    key_mask = None if attention_mask is None else _key_mask(attention_mask, query.shape[2], key.shape[2], causal)
    if isinstance(state_layer, StateLayer):
        output, state_layer.state = heads.step(query, key, value, state_layer.state, key_mask, scale=scaling)
    else:
        output = heads(query, key, value, grid, key_mask, prefix, is_causal=causal, scale=scaling)
    return nn.functional.dropout(output.transpose(1, 2), dropout, module.training), None


def padding_mask(
    *,
    kv_length: int,
    mask_function: Callable = causal_mask_function,
    attention_mask: Bool[Tensor, "batch keys"] | None = None,
    **_: object,  # what transformers hands to every maker of masks
) -> Bool[Tensor, "batch keys"] | None:
    """The mask that `attend` takes: one flag per key, or None; a ValueError for windows and packed sequences."""
    if mask_function not in (causal_mask_function, bidirectional_mask_function):
        expected = "causal or bidirectional attention with padding: sums over keys can keep no other mask"
        raise wrong_value("the model's attention mask", getattr(mask_function, "__qualname__", mask_function), expected)
    return None if attention_mask is None or attention_mask.all() else attention_mask[:, -kv_length:]


def _key_mask(mask: Shaped[Tensor, "..."], num_queries: int, num_keys: int, causal: bool) -> Bool[Tensor, "batch keys"]:
    """One flag per key of a mask of flags or of 0 and −∞, for keys or for pairs of queries and keys."""
    keep = mask if mask.dtype == torch.bool else mask == 0 if mask.ndim == 4 else mask != 0
    if keep.ndim == 2:
        return keep[:, -num_keys:]
    keep = keep[..., -num_keys:].expand(-1, -1, num_queries, -1)
    of_keys = keep[:, 0, -1]
    pairs = of_keys[:, None].expand(-1, num_queries, -1)
    pairs = pairs.tril(num_keys - num_queries) if causal else pairs
    # What a query that is padding itself sees does not matter.
    real = of_keys[:, -num_queries:] if num_queries <= num_keys and causal else of_keys.new_ones(len(keep), num_queries)
    if not bool(((keep == pairs[:, None]) | ~real[:, None, :, None]).all()):
        raise wrong_value("attention_mask", "a mask of pairs", "padding, and with causal attention all later keys")
    return of_keys


def patch_grid(config: object) -> Grid | None:
    """The grid of the patches of a config's images, or None if it has none."""
    sizes: list[Any] = [getattr(config, name, None) for name in ("image_size", "patch_size")]
    if not all(isinstance(size, int | Sequence) for size in sizes):
        return None
    image, patch = ((size, size) if isinstance(size, int) else tuple(size) for size in sizes)
    return Grid(tuple(side // step for side, step in zip(image, patch, strict=True)))


def _grid_of(module: nn.Module, num_tokens: int) -> tuple[Grid | None, int]:
    """Where a layer's tokens are: what `teka.on` says, or the patches of the config's images, or None for a row."""
    present, grid = present_grid(), patch_grid(getattr(module, "config", None))
    if present[0] is not None or grid is None:
        return present
    prefix = num_tokens - grid.num_tokens
    if not 0 <= prefix <= MOST_PREFIX_TOKENS:
        expected = f"{grid.num_tokens} patches, {grid.shape}, and class tokens, or teka.on(grid) around the call"
        raise wrong_value("the number of tokens", num_tokens, expected)
    return grid, prefix


def _heads_of(module: nn.Module, query: Tensor, grid: Grid | None, pair: tuple[str, str | None]) -> AttentionHeads:
    """The heads of a pair of kernels for a layer's queries, made once."""
    _, heads, _, dim_head = query.shape
    sizes = (dim_head, heads, 1 if grid is None else grid.num_axes)
    dtype = torch.promote_types(query.dtype, torch.float32)
    made, name = _heads.setdefault(module, {}), (*sizes, pair, query.device, dtype)
    if name not in made:
        made[name] = _make_heads(*sizes, pair).to(query.device, dtype)
    return made[name]


def _make_heads(dim_head: int, heads: int, num_axes: int, pair: tuple[str, str | None]) -> AttentionHeads:
    """Heads whose kernels are drawn with seed 0 and stay as they are."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = AttentionHeads(dim_head, heads, kernel=pair[0], relative=pair[1], num_axes=num_axes)
    return made.requires_grad_(False)
