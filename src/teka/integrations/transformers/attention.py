"""teka's attention kernels as values of `attn_implementation` in the transformers library."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import product
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
from teka.execution_mode import can_read_elements
from teka.functional.kernels import DETERMINISTIC_KERNELS, RANDOM_KERNELS
from teka.grid import Grid, active_grid_and_prefix
from teka.integrations.transformers.cache import StateLayer
from teka.nn import AttentionHeads

NAME = "teka"
DEFAULT_KERNELS = ("squared_relu", "rotary")  # content kernel and relative kernel of `NAME`
# Relative kernels that are useful without training. `replace_attention` supports all others too.
RELATIVE_NAMES = (None, "rotary", "alibi", "decay")
# Value of `attn_implementation` after `replace_attention`, and name of the attribute that holds a
# layer's new heads.
REPLACED = "teka:own"
REPLACED_HEADS = "teka_heads"
# Number of tokens before the patches, without register tokens, by the model type of the config.
NUM_CLASS_TOKENS = {
    **dict.fromkeys(("ijepa", "siglip_vision_model", "videomae"), 0),
    **dict.fromkeys(("audio-spectrogram-transformer", "deit"), 2),
    **dict.fromkeys(
        (
            "altclip_vision_model",
            "beit",
            "blip_2_vision_model",
            "chinese_clip_vision_model",
            "clip_vision_model",
            "clipseg_vision_model",
            "data2vec-vision",
            "dinov2",
            "dinov2_with_registers",
            "dinov3_vit",
            "dpt",
            "git_vision_model",
            "instructblip_vision_model",
            "kosmos_2_vision_model",
            "metaclip_2_vision_model",
            "mlcd_vision_model",
            "owlv2_vision_model",
            "owlvit_vision_model",
            "vit",
            "vit_msn",
            "vivit",
        ),
        1,
    ),
}
# Arguments with which models change the attention weights.
UNSUPPORTED_ARGUMENTS = ("block_indices", "indices", "position_bias", "s_aux", "sinks", "softcap")
Kernels = tuple[str, str | None]


def register_attention() -> None:
    """Register teka's attention kernels as attention implementations of transformers.

    Hugging Face models then accept "teka", "teka:KERNEL" and "teka:KERNEL-RELATIVE" as
    `attn_implementation`. There is one name for each valid pair of a content kernel and a relative
    kernel.
    """
    names: dict[str, Kernels] = {NAME: DEFAULT_KERNELS}
    for kernels in product((*DETERMINISTIC_KERNELS, *RANDOM_KERNELS), RELATIVE_NAMES):
        with suppress(ValueError):  # the kernels cannot be combined
            get_shared_heads(8, 2, 1, kernels)
            names[f"{NAME}:{'-'.join(filter(None, kernels))}"] = kernels
    for name, kernels in names.items():
        AttentionInterface.register(name, partial(attention_forward, kernels=kernels))
        AttentionMaskInterface.register(name, make_padding_mask)


def attention_forward(
    module: nn.Module,
    query: Float[Tensor, "batch heads queries dim"],
    key: Float[Tensor, "batch key_heads keys dim"],
    value: Float[Tensor, "batch key_heads keys dim_value"],
    attention_mask: Shaped[Tensor, "..."] | None,
    *,
    kernels: Kernels,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **options: object,
) -> tuple[Float[Tensor, "batch queries heads dim_value"], None]:
    """Compute attention with teka's kernels, as an `AttentionInterface` of transformers.

    - Positions: relative kernels use the grid of the context `teka.on`. Outside of this context,
      they use the patch grid in the model config or, if there is none, a sequence.
    - Dropout is applied to the output, not to the attention weights.
    - With a `StateCache`, each call continues from the tokens of the earlier calls.

    Args:
        module: Attention layer of the model. If `teka.convert.replace_attention` has added heads
            to the layer, these heads compute the attention.
        query: Queries.
        key: Keys. Their number of heads divides the number of query heads. The keys of a static
            cache end with empty slots, which the mask does not cover.
        value: Values.
        attention_mask: Key mask that `make_padding_mask` returns.
        kernels: Content kernel and relative kernel of a layer without replaced heads.
        scaling: Factor of the attention scores.
        dropout: Dropout rate of the output during training.
        is_causal: If True, queries do not attend to later keys. The default is the layer's
            attribute `is_causal`.
        options: Other arguments of the model. Arguments that change the attention weights raise an
            error.

    Raises:
        ValueError: The mask, an option, or the number of tokens is not supported.
    """
    for name in UNSUPPORTED_ARGUMENTS:
        if options.get(name) is not None:
            raise wrong_argument(
                f"{name} of {type(module).__name__}",
                "a value",
                "None",
                "teka's attention does not support this argument.",
            )
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", False))
    state_layer = getattr(key, "state_layer", None)
    key_mask = None
    num_keys = key.shape[2]
    if attention_mask is not None:
        if attention_mask.ndim != 2:
            raise wrong_shape(
                "attention_mask",
                attention_mask.shape,
                "(batch, keys)",
                "Only padding masks are supported, not position biases or other masks.",
            )
        key_mask = (attention_mask != 0)[:, -num_keys:]
        if is_causal:  # the other slots of a static cache are empty
            num_keys = key_mask.shape[1]
    num_groups = query.shape[1] // key.shape[1]
    key, value = (
        vectors[:, :, :num_keys].repeat_interleave(num_groups, dim=1) for vectors in (key, value)
    )

    heads = getattr(module, REPLACED_HEADS, None)
    relative = kernels[1] if heads is None else heads.relative
    grid = None
    num_prefix = 0
    if relative is not None and not is_causal and getattr(heads, "grid", None) is None:
        grid, num_prefix = _find_token_grid(module, query.shape[2], key.shape[2])
    if heads is None:
        num_axes = 1 if grid is None else grid.num_axes
        dtype = torch.promote_types(query.dtype, torch.float32)
        heads = get_shared_heads(
            query.shape[3], query.shape[1], num_axes, kernels, query.device, dtype
        )
    if isinstance(state_layer, StateLayer):
        output, state_layer.state = heads.step(
            query, key, value, state_layer.state, key_mask, scale=scaling
        )
    else:
        output = heads(
            query, key, value, grid, key_mask, num_prefix, is_causal=is_causal, scale=scaling
        )
    return nn.functional.dropout(output.transpose(1, 2), dropout, module.training), None


def make_padding_mask(
    *,
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Int[Tensor, ""] = 0,
    kv_offset: int = 0,
    mask_function: Callable = causal_mask_function,
    attention_mask: Bool[Tensor, "batch keys"] | None = None,
    device: torch.device | str | None = None,
    **_: object,
) -> Bool[Tensor, "batch keys"] | None:
    """Return the padding mask of a batch, as an `AttentionMaskInterface` of transformers.

    The model passes this mask to `attention_forward`. With causal attention, the mask ends at the
    last query. A static cache has empty slots after it, which the mask leaves out.

    Args:
        batch_size: Number of samples.
        q_length: Number of queries.
        kv_length: Number of keys.
        q_offset: Position of the first query.
        kv_offset: Position of the first key.
        mask_function: Mask function of transformers, which selects pairs of queries and keys.
        attention_mask: True for tokens, False for padding, from position 0.
        device: Device of the mask.

    Returns:
        The mask, or None if all keys are kept.

    Raises:
        ValueError: The mask has a sliding window, chunks or packed sequences.
    """
    if mask_function not in (causal_mask_function, bidirectional_mask_function):
        raise wrong_value(
            "the model's attention mask",
            getattr(mask_function, "__qualname__", mask_function),
            "causal or bidirectional",
            "Sliding windows, chunks and packed sequences are not supported.",
        )
    is_causal = mask_function is causal_mask_function
    stop = int(q_offset) + q_length if is_causal else kv_offset + kv_length
    num_keys = stop - kv_offset
    if attention_mask is None:
        if num_keys == kv_length:
            return None
        return torch.ones(batch_size, num_keys, dtype=torch.bool, device=device)
    keep = attention_mask[:, kv_offset:stop]
    keep = nn.functional.pad(keep, (0, num_keys - keep.shape[1]), value=False)
    # A recorded graph cannot read the mask, so it keeps a mask of ones.
    return None if num_keys == kv_length and can_read_elements(keep) and keep.all() else keep


def find_patch_grid(config: Any) -> Grid | None:
    """Return the patch grid of a Hugging Face image, video or audio model.

    Return None if the model's config does not describe patches.
    """
    patch = _parse_height_and_width(getattr(config, "patch_size", None))
    if getattr(config, "model_type", None) == "audio-spectrogram-transformer":
        rows = (config.num_mel_bins - config.patch_size) // config.frequency_stride
        columns = (config.max_length - config.patch_size) // config.time_stride
        return Grid((rows + 1, columns + 1))
    image = _parse_height_and_width(
        getattr(config, "image_size", None) or getattr(config, "crop_size", None)
    )
    frames = getattr(config, "num_frames", None) or getattr(config, "frames_per_clip", None)
    tubelet = getattr(config, "tubelet_size", None)
    if isinstance(tubelet, Sequence):  # time, height and width
        tubelet, *patch = tubelet
    if image is None or patch is None:
        return None
    shape = (image[0] // patch[0], image[1] // patch[1])
    if isinstance(frames, int) and isinstance(tubelet, int):
        shape = (frames // tubelet, *shape)
    return Grid(shape)


def _parse_height_and_width(size: Any) -> tuple[int, ...] | None:
    """Return a size in a config as (height, width), or None if it is not one or two integers."""
    if isinstance(size, int):
        return size, size
    return tuple(size) if isinstance(size, Sequence) and len(size) == 2 else None


def _find_token_grid(module: nn.Module, num_queries: int, num_keys: int) -> tuple[Grid | None, int]:
    """Return the token grid of a layer, and the number of tokens before the grid.

    The grid of the context `teka.on` takes precedence over the patch grid in the config. The grid
    is None if the tokens are a sequence.
    """
    # Decoder layers that are not causal attend to the encoder's tokens.
    is_decoder = getattr(module, "is_decoder", False)
    if num_queries != num_keys or getattr(module, "is_cross_attention", is_decoder):
        raise wrong_argument(
            type(module).__name__,
            "attention to other tokens than its own",
            "self-attention, or have a kernel without positions",
        )
    ambient = active_grid_and_prefix()
    config = getattr(module, "config", None)
    grid = find_patch_grid(config)
    if ambient[0] is not None or grid is None:
        return ambient
    prefix = NUM_CLASS_TOKENS.get(getattr(config, "model_type", ""), 0)
    if prefix:  # register tokens follow the class tokens
        prefix += getattr(config, "num_register_tokens", 0)
    if num_keys != prefix + grid.num_tokens:
        sides = " × ".join(map(str, grid.shape))
        expected = (
            f"{prefix + grid.num_tokens} for the config's images, {sides} patches after {prefix} "
            "other tokens"
        )
        raise wrong_value(
            "the number of tokens",
            num_keys,
            expected,
            "For another grid, call the model in the context teka.on(grid, num_prefix_tokens).",
        )
    return grid, prefix


@cache
def get_shared_heads(
    dim_head: int,
    heads: int,
    num_axes: int,
    kernels: Kernels,
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> AttentionHeads:
    """Return the `AttentionHeads` that all layers with the same sizes and kernels share.

    Layers can share them because they are not trained: all parameters have their initial values,
    and random features are drawn with seed 0.
    """
    kernel, relative = kernels
    # Tensors that are made in inference mode could not be used for training later.
    with torch.inference_mode(False), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        shared = AttentionHeads(
            dim_head, heads, kernel=kernel, relative=relative, num_axes=num_axes
        )
    return shared.to(device, dtype).requires_grad_(False)


def refuse_to_save(*_: object, **__: object) -> None:
    """Raise an error that says how to save a model with replaced attention.

    `replace_attention` replaces the methods `save_pretrained` and `push_to_hub` of the model by
    this function, because the saved files would not contain the new attention.
    """
    raise ValueError(
        "save_pretrained cannot save replaced attention, because from_pretrained would load the "
        "original attention. Save model.state_dict(), and load it after replace_attention with "
        "the same arguments."
    )


# Cross-attention layers of a model with replaced heads keep the softmax. A process that unpickles
# such a model imports this module and needs the implementation too.
AttentionInterface.register(REPLACED, partial(attention_forward, kernels=("softmax", None)))
AttentionMaskInterface.register(REPLACED, make_padding_mask)
