"""Attention implementations for transformers that use teka's kernels."""

import weakref
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import (
    AttentionMaskInterface,
    bidirectional_mask_function,
    causal_mask_function,
)

from teka.errors import wrong_argument, wrong_shape, wrong_value
from teka.execution_mode import is_readable
from teka.functional.kernels import DETERMINISTIC_KERNELS, RANDOM_KERNELS
from teka.grid import Grid, current_grid
from teka.integrations.transformers.cache import StateLayer
from teka.nn import AttentionHeads

NAME = "teka"
OWN = "teka:own"  # the heads that a layer has, or softmax if it has none
DEFAULT = ("squared_relu", "rotary")  # of the name alone
# Relative kernels that are useful without training. The others are for `teka.convert.replace_attention`.
RELATIVES = (None, "rotary", "alibi", "decay")
OWN_HEADS = "teka_heads"  # the attribute of a layer that `teka.convert.replace_attention` sets
# Number of class and distillation tokens before the patches, by the model type of the config. Register tokens come on
# top. Model types that are not listed have no tokens but patches.
NUM_CLASS_TOKENS = {
    "altclip_vision_model": 1,
    "audio-spectrogram-transformer": 2,
    "beit": 1,
    "blip_2_vision_model": 1,
    "chinese_clip_vision_model": 1,
    "clip_vision_model": 1,
    "clipseg_vision_model": 1,
    "data2vec-vision": 1,
    "deit": 2,
    "dinov2": 1,
    "dinov2_with_registers": 1,
    "dinov3_vit": 1,
    "dpt": 1,
    "git_vision_model": 1,
    "instructblip_vision_model": 1,
    "kosmos_2_vision_model": 1,
    "metaclip_2_vision_model": 1,
    "mlcd_vision_model": 1,
    "owlv2_vision_model": 1,
    "owlvit_vision_model": 1,
    "vit": 1,
    "vit_msn": 1,
    "vivit": 1,
}
# Arguments by which models change the attention weights themselves.
UNSUPPORTED = ("block_indices", "indices", "position_bias", "s_aux", "sinks", "softcap")
DROPPED = -1e4  # additive masks drop a key by this value or less, down to −∞

# Heads by attention layer, for the kernels of a name. They are not parameters of the model.
_heads: "weakref.WeakKeyDictionary[nn.Module, dict[tuple, AttentionHeads]]" = (
    weakref.WeakKeyDictionary()
)


def register_attention() -> None:
    """Register "teka", "teka:KERNEL" and "teka:KERNEL-RELATIVE", for every valid pair, and their masks."""
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
            names[f"{NAME}:{kernel}" + ("" if relative is None else f"-{relative}")] = (
                kernel,
                relative,
            )
    return names


def attend(
    module: nn.Module,
    query: Float[Tensor, "batch heads queries dim"],
    key: Float[Tensor, "batch key_heads keys dim"],
    value: Float[Tensor, "batch key_heads keys dim_value"],
    attention_mask: Shaped[Tensor, "..."] | None,
    *,
    pair: tuple[str, str | None] | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **options: object,
) -> tuple[Float[Tensor, "batch queries heads dim_value"], None]:
    """Compute attention for `AttentionInterface`.

    Relative kernels take the tokens to be the cells of `teka.on`, or else the patches of the config's images after the
    class tokens, or else a row. Dropout acts on the output. With a `StateCache` each call continues from the state of
    the tokens before.

    Args:
        module: The attention layer of the model.
        query: Queries.
        key: Keys, of as many heads or a divisor. A static cache has empty slots at the end, which the mask leaves out.
        value: Values.
        attention_mask: The result of `padding_mask`, or a 4-D mask that the caller made.
        pair: Content kernel and relative kernel, or None for the layer's own heads.
        scaling: Factor of the scores.
        dropout: Probability of zeroing an element of the output during training.
        is_causal: Whether a query attends to no later key; by default the attribute of the layer.
        options: Further arguments of the model. Those that change the attention weights are refused.

    Raises:
        ValueError: The mask, an option, or the number of tokens is not supported.
    """
    for name in UNSUPPORTED:
        if options.get(name) is not None:
            expected = "a model without it: teka's kernels cannot add it to the attention weights"
            raise wrong_argument(f"{name} of {type(module).__name__}", "a value", expected)
    causal = getattr(module, "is_causal", False) if is_causal is None else is_causal
    state_layer = getattr(key, "state_layer", None)
    key_mask = (
        None
        if attention_mask is None
        else _key_mask(attention_mask, query.shape[2], key.shape[2], causal)
    )
    if key_mask is not None and causal:
        key, value = (
            tensor[:, :, : key_mask.shape[1]] for tensor in (key, value)
        )  # without a static cache's empty slots
    key, value = (
        tensor.repeat_interleave(query.shape[1] // tensor.shape[1], dim=1)
        for tensor in (key, value)
    )
    heads = getattr(module, OWN_HEADS, None) if pair is None else None
    grid, prefix = None, 0
    if isinstance(heads, AttentionHeads):
        if heads.relative is not None and heads.grid is None and not causal:
            grid, prefix = _grid_of(module, query.shape[2], key.shape[2])
    else:
        pair = pair or ("softmax", None)
        if pair[1] is not None and not causal:
            grid, prefix = _grid_of(module, query.shape[2], key.shape[2])
        heads = _heads_of(module, query, grid, pair)
    if isinstance(state_layer, StateLayer):
        output, state_layer.state = heads.step(
            query, key, value, state_layer.state, key_mask, scale=scaling
        )
    else:
        output = heads(query, key, value, grid, key_mask, prefix, is_causal=causal, scale=scaling)
    return nn.functional.dropout(output.transpose(1, 2), dropout, module.training), None


def padding_mask(
    *,
    kv_length: int,
    batch_size: int = 1,
    kv_offset: int = 0,
    q_length: int | None = None,
    q_offset: int | Int[Tensor, ""] = 0,
    cache_position: Int[Tensor, "queries"] | None = None,
    mask_function: Callable = causal_mask_function,
    attention_mask: Bool[Tensor, "batch keys"] | None = None,
    device: torch.device | str | None = None,
    **_: object,
) -> Bool[Tensor, "batch keys"] | None:
    """Make the mask of `attend` for `AttentionMaskInterface`: one flag per key, or None if all keys are kept.

    With causal attention the mask ends at the last query, so that it is shorter than the keys of a static cache.

    Args:
        kv_length: Number of keys.
        batch_size: Number of samples.
        kv_offset: Position of the first key.
        q_length: Number of queries.
        q_offset: Position of the first query.
        cache_position: Positions of the queries; older versions of transformers pass them instead.
        mask_function: Which pairs of queries and keys are kept.
        attention_mask: True for tokens, False for padding, from position 0.
        device: Device of the mask.

    Raises:
        ValueError: The mask has a sliding window, chunks or packed sequences.
    """
    if mask_function not in (causal_mask_function, bidirectional_mask_function):
        expected = "causal or bidirectional attention with padding, without sliding windows, chunks or packed sequences"
        raise wrong_value(
            "the model's attention mask",
            getattr(mask_function, "__qualname__", mask_function),
            expected,
        )
    stop = kv_offset + kv_length
    if mask_function is causal_mask_function:
        if cache_position is not None:
            stop, device = int(cache_position[-1]) + 1, cache_position.device
        elif q_length is not None:
            stop = int(q_offset) + q_length
    num_keys = stop - kv_offset
    if attention_mask is None:
        return (
            None
            if num_keys == kv_length
            else torch.ones(batch_size, num_keys, dtype=torch.bool, device=device)
        )
    keep = attention_mask[:, kv_offset:stop]
    keep = nn.functional.pad(keep, (0, num_keys - keep.shape[1]), value=False)
    # A recorded graph cannot read the mask, so that it keeps a mask of ones.
    return None if num_keys == kv_length and is_readable(keep) and keep.all() else keep


def _key_mask(
    mask: Shaped[Tensor, "..."], num_queries: int, num_keys: int, causal: bool
) -> Bool[Tensor, "batch keys"]:
    """Return one flag per key for a mask of keys or of pairs; it ends at the last key that a causal query attends to.

    Masks of keys are True or not 0 for a key that is kept. Masks of pairs are True or 0 for it.
    """
    if mask.ndim == 2:
        return (mask != 0)[:, -num_keys:]
    if mask.ndim != 4:
        raise wrong_shape(
            "attention_mask", mask.shape, "(batch, keys) or (batch, heads, queries, keys)"
        )
    keep = mask if mask.dtype == torch.bool else mask == 0
    if mask.dtype != torch.bool and (
        mask.requires_grad or not bool((keep | (mask <= DROPPED)).all())
    ):
        raise wrong_argument(
            "attention_mask",
            "additive",
            "0 or −∞ for each pair; no bias can be added to the weights",
        )
    keep = keep[..., -num_keys:].expand(-1, -1, num_queries, -1)
    if causal and num_keys > num_queries:
        attended = keep.flatten(0, 2).any(dim=0).nonzero()
        num_keys = max(num_queries, int(attended[-1]) + 1 if len(attended) else 0)
        keep = keep[..., :num_keys]
    of_keys = keep[:, 0, -1]
    pairs = of_keys[:, None].expand(-1, num_queries, -1)
    pairs = pairs.tril(num_keys - num_queries) if causal else pairs
    # What a query attends to does not matter if the query is padding itself.
    real = (
        of_keys[:, -num_queries:]
        if num_queries <= num_keys and causal
        else of_keys.new_ones(len(keep), num_queries)
    )
    if not bool(((keep == pairs[:, None]) | ~real[:, None, :, None]).all()):
        raise wrong_argument(
            "attention_mask", "a mask of pairs", "padding, and with causal attention all later keys"
        )
    return of_keys


def patch_grid(config: object) -> Grid | None:
    """Return the grid of the patches of a config's images, clips or spectrograms, or None if it has none."""
    patch = _sides(config, "patch_size")
    if getattr(config, "model_type", None) == "audio-spectrogram-transformer":
        image = _numbers(config, "num_mel_bins", "max_length")
        stride = _numbers(config, "frequency_stride", "time_stride")
        if patch is None or image is None or stride is None:
            return None
        sizes = zip(image, patch, stride, strict=True)
        return Grid(tuple((side - width) // step + 1 for side, width, step in sizes))
    image = _sides(config, "image_size") or _sides(config, "crop_size")
    tubelet = getattr(config, "tubelet_size", None)
    frames = getattr(config, "num_frames", None) or getattr(config, "frames_per_clip", None)
    if (
        isinstance(tubelet, Sequence) and len(tubelet) == 3
    ):  # along time and both sides of the image
        tubelet, patch = tubelet[0], tuple(tubelet[1:])
    if image is None or patch is None:
        return None
    shape = tuple(side // step for side, step in zip(image, patch, strict=True))
    return Grid(
        (frames // tubelet, *shape)
        if isinstance(frames, int) and isinstance(tubelet, int)
        else shape
    )


def _sides(config: object, name: str) -> tuple[int, ...] | None:
    """Return height and width of an attribute that is one number or two."""
    size: Any = getattr(config, name, None)
    size = (size, size) if isinstance(size, int) else size
    return tuple(size) if isinstance(size, Sequence) and len(size) == 2 else None


def _numbers(config: object, *names: str) -> tuple[int, ...] | None:
    values: list[Any] = [getattr(config, name, None) for name in names]
    return tuple(values) if all(isinstance(value, int) for value in values) else None


def num_prefix_tokens(config: object) -> int:
    """Return the number of class, distillation and register tokens that a config's model puts before the patches."""
    num_class_tokens = NUM_CLASS_TOKENS.get(getattr(config, "model_type", ""), 0)
    return num_class_tokens + (getattr(config, "num_register_tokens", 0) if num_class_tokens else 0)


def _grid_of(module: nn.Module, num_queries: int, num_keys: int) -> tuple[Grid | None, int]:
    """Return the grid of a layer's tokens and its prefix: that of `teka.on`, or of the config, or None for a row."""
    # Layers of decoders that are not causal attend to the encoder's tokens.
    if num_queries != num_keys or getattr(
        module, "is_cross_attention", getattr(module, "is_decoder", False)
    ):
        expected = "self-attention: the positions of other tokens are not known; choose a kernel without positions"
        raise wrong_argument(
            type(module).__name__, "attention to other tokens than its own", expected
        )
    present, config = current_grid(), getattr(module, "config", None)
    grid = patch_grid(config)
    if present[0] is not None or grid is None:
        return present
    prefix = num_prefix_tokens(config)
    if num_keys != prefix + grid.num_tokens:
        sides = " × ".join(map(str, grid.shape))
        expected = f"{prefix + grid.num_tokens} for the config's images, {sides} patches after {prefix} other tokens"
        hint = "for another grid call the model within teka.on(grid, num_prefix_tokens)"
        raise wrong_value("the number of tokens", num_keys, f"{expected}; {hint}")
    return grid, prefix


def _heads_of(
    module: nn.Module, query: Tensor, grid: Grid | None, pair: tuple[str, str | None]
) -> AttentionHeads:
    """Return the heads of a pair of kernels for a layer's queries, which are made once."""
    _, heads, _, dim_head = query.shape
    sizes = (dim_head, heads, 1 if grid is None else grid.num_axes)
    dtype = torch.promote_types(query.dtype, torch.float32)
    made, name = _heads.setdefault(module, {}), (*sizes, pair, query.device, dtype)
    if name not in made:
        made[name] = _make_heads(*sizes, pair).to(query.device, dtype)
    return made[name]


def _make_heads(
    dim_head: int, heads: int, num_axes: int, pair: tuple[str, str | None]
) -> AttentionHeads:
    """Make heads whose kernels are drawn with seed 0, so that they are the same in every process, and stay fixed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = AttentionHeads(dim_head, heads, kernel=pair[0], relative=pair[1], num_axes=num_axes)
    return made.requires_grad_(False)
