"""Replacement of the attention in PyTorch, timm and transformers models, in place."""

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from teka.checks import check_instance, check_module, check_sizes
from teka.errors import wrong_value
from teka.grid import Grid
from teka.memory import count_parameters
from teka.nn import AttentionHeads, MultiheadAttention
from teka.nn.head_groups import join_kernel_names
from teka.nn.multihead_attention import is_causal_mask
from teka.nn.options import AttentionOptions

# Reasons why a layer is not replaced. The following reasons apply to every kernel.
OTHER_TOKENS = "it attends to other tokens than its own"
BIASED = "its attention has biases, a softcap or selected keys, which teka does not support"
WINDOWED = "its model limits attention to a window of keys"
SUBCLASS = "teka does not support subclasses of MultiheadAttention, add_bias_kv or add_zero_attn"
UNSUPPORTED = "attention of this class is not supported"
# The following reasons apply only to relative kernels.
COARSER_KEYS = "its keys are on a coarser grid than its queries; use relative=None to replace it"
SUBSET = (
    "the model may drop patches, so token positions are unknown; use relative=None to replace it"
)
UNPLACED = "its token positions are unknown; pass the token grid, or use relative=None"

SUPPORTED_HINT = (
    "teka supports torch.nn.MultiheadAttention, timm's vision transformers, and models of the "
    "transformers library."
)
TIMM_MODULES = ("timm.layers.attention", "timm.models.vision_transformer")
# Input names of Hugging Face models that process sequences other than text.
SEQUENCE_INPUTS = ("input_features", "input_values", "past_values")
# Module names of cross-attention in Hugging Face models.
CROSS_NAMES = frozenset({"encoder_attn", "crossattention", "cross_attn"})
# Substrings of the names of parameters that bias the attention weights in Hugging Face models.
BIAS_NAMES = ("relative_position_bias", "relative_attention_bias", "rel_pos")
WINDOW_TYPES = ("sliding", "chunked", "local", "sparse", "window")
# Attribute names of sizes in Hugging Face layers and configs.
NUM_HEADS_NAMES = ("num_attention_heads", "num_heads", "n_heads", "n_head", "num_attn_heads")
HEAD_SIZE_NAMES = ("qk_head_dim", "attention_head_size", "head_dim", "key_value_proj_dim")
REDUCTION_NAMES = ("sequence_reduction_ratio", "spatial_reduction_ratio", "sr_ratio")


@dataclass(frozen=True)
class ReplacementReport:
    """Report of `replace_attention`: the attention layers that it replaced or skipped.

    >>> import torch, teka
    >>> attention = torch.nn.MultiheadAttention(16, 2)
    >>> model = torch.nn.ModuleDict({"attention": attention, "mlp": torch.nn.Linear(16, 16)})
    >>> report = teka.convert.replace_attention(model, relative="decay", num_axes=1)
    >>> report.replaced, report.num_kept, report.num_new
    ({'attention': 'MultiheadAttention'}, 1360, 2)

    Attributes:
        kernels: Names of the new content kernel and relative kernel, such as
            "squared_relu × rotary".
        replaced: Original class of each replaced layer, by the name of the layer in the model.
        left: Reason why each skipped layer was not replaced, by the name of the layer.
        num_kept: Number of original parameters. All of them are kept.
        num_new: Number of parameters that the new kernels add.
    """

    kernels: str
    replaced: dict[str, str]
    left: dict[str, str]
    num_kept: int
    num_new: int

    def __str__(self) -> str:
        lines = ["No layer was replaced."]
        if self.replaced:
            count = len(self.replaced)
            layers = "1 layer attends" if count == 1 else f"{count} layers attend"
            counts = f"{self.num_kept:,} parameters kept, {self.num_new:,} new"
            lines = [f"{layers} by {self.kernels} now; {counts}."]
        for name, former_class in self.replaced.items():
            lines.append(f"  {name or 'the model itself'}: was {former_class}")
        for name, reason in self.left.items():
            lines.append(f"  {name or 'the model itself'}: left, because {reason}")
        return "\n".join(lines)


@dataclass(frozen=True)
class _AttentionCandidate:
    """Module that may be an attention layer, and what the new kernels need to know about it.

    Attributes:
        name: Name of the module in the model.
        module: The module.
        parents: Modules that contain the module, innermost first.
        needs_positions: True if the new kernels depend on token positions.
        needs_grid: True if the token grid must be found, because the caller passes none.
    """

    name: str
    module: Any
    parents: list[Any]
    needs_positions: bool
    needs_grid: bool

    @property
    def enclosing_hf_model(self) -> Any:
        """Smallest Hugging Face model that contains this module, or None if there is none."""
        models = (model for model in self.parents if hasattr(model, "set_attn_implementation"))
        return next(models, None)

    @property
    def is_self_attention(self) -> bool:
        """True unless the layer is cross-attention or attention pooling with a learned query."""
        parent = self.parents[0] if self.parents else self.module
        is_in_decoder = isinstance(parent, nn.TransformerDecoderLayer)
        return not (
            (is_in_decoder and self.name.endswith("multihead_attn"))
            or "Pooling" in type(parent).__name__
            or getattr(self.module, "is_cross_attention", False)
            or "Cross" in type(self.module).__name__
            or not CROSS_NAMES.isdisjoint(self.name.split("."))
        )


@dataclass(frozen=True)
class _ReplaceableLayer:
    """Sizes of an attention layer that can be replaced, and the function that replaces it.

    Attributes:
        num_heads: Number of heads.
        dim_head: Size of a head.
        install: Function that makes the layer use new `AttentionHeads`.
        position_options: Arguments of `AttentionHeads` for the token positions, if the caller
            passes no grid.
    """

    num_heads: int
    dim_head: int
    install: Callable[[AttentionHeads], None]
    position_options: dict[str, Any]


def replace_attention(
    model: nn.Module, *, grid: Grid | None = None, num_prefix_tokens: int = 0, **options: Any
) -> ReplacementReport:
    """Replace the attention kernels of a model in place, and keep all its parameters.

    Three kinds of layers are supported:

    - `torch.nn.MultiheadAttention`, also in modules such as `torch.nn.TransformerEncoder`,
    - the attention of timm's vision transformers,
    - layers of transformers that support `attn_implementation`.

    Each layer gets `AttentionHeads` with the new kernels, whose parameters are trained together
    with the model. With kernel="softmax" and relative=None, the outputs change only by rounding.
    With other kernels, train the model again; see `distill_attention`.

    Layers that cannot be replaced are listed in the report with the reason: attention with position
    biases or sliding windows, and, for a relative kernel, attention whose tokens have unknown
    positions.

    `save_pretrained` refuses to save a Hugging Face model with replaced attention, because
    `from_pretrained` would restore the original attention. Save its `state_dict`, and load it into
    a model whose attention was replaced in the same way.

    >>> import torch, teka
    >>> layer = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 2)
    >>> print(teka.convert.replace_attention(model, grid=teka.Grid((3, 4))))
    2 layers attend by squared_relu × rotary now; 137,504 parameters kept, 32 new.
      layers.0.self_attn: was MultiheadAttention
      layers.1.self_attn: was MultiheadAttention

    Args:
        model: The model.
        grid: Grid of the tokens after the prefix. By default, the patch grid of timm and Hugging
            Face image models, and a sequence for text, audio and `torch.nn.MultiheadAttention`. A
            `teka.on` around a call takes precedence.
        num_prefix_tokens: Number of tokens at the start that have no position. timm and Hugging
            Face image models define it.
        **options: Options of the kernels, as for `AttentionHeads`.

    Raises:
        ValueError: The model has no attention of a supported class, or options are invalid. The
            model is unchanged.

    Warns:
        UserWarning: No layer was replaced.
    """
    check_module("model", model)
    if grid is not None:
        check_instance("grid", grid, Grid)
    check_sizes({"num_prefix_tokens": num_prefix_tokens}, 0)
    has_relative = AttentionOptions(**{"num_axes": 1, **options}).relative is not None
    modules = dict(model.named_modules())
    layers: dict[str, _ReplaceableLayer] = {}
    left: dict[str, str] = {}
    for name, module in modules.items():
        parts = name.split(".") if name else []
        parents = [modules[".".join(parts[:depth])] for depth in reversed(range(len(parts)))]
        candidate = _AttentionCandidate(
            name, module, parents, has_relative, has_relative and grid is None
        )
        layer = _plan_replacement(candidate)
        if isinstance(layer, _ReplaceableLayer):
            layers[name] = layer
        elif layer is not None:
            left[name] = layer
    if not layers and set(left.values()) <= {UNSUPPORTED}:
        classes = [f"{name} is a {type(modules[name]).__name__}." for name in left]
        hint = " ".join([*classes[:1], SUPPORTED_HINT])
        raise wrong_value("model", type(model).__name__, "a model with supported attention", hint)

    heads: dict[str, AttentionHeads] = {}
    for name, layer in layers.items():
        position_options = layer.position_options if grid is None else {"grid": grid}
        arguments = {"num_prefix_tokens": num_prefix_tokens, **position_options, **options}
        new_heads = AttentionHeads(layer.dim_head, layer.num_heads, **arguments)
        parameter = next(iter([*modules[name].parameters(), *model.parameters()]))
        dtype = parameter.dtype if parameter.is_floating_point() else None
        heads[name] = new_heads.to(parameter.device, dtype).train(modules[name].training)
    num_kept = count_parameters(model)
    replaced = {name: type(modules[name]).__name__ for name in layers}
    for name, layer in layers.items():
        layer.install(heads[name])
    for module in modules.values():
        if isinstance(module, nn.TransformerEncoder) and layers:
            module.use_nested_tensor = False  # only torch's own attention supports it

    kernels = join_kernel_names(*next(iter(heads.values())).current_kernels()) if heads else ""
    num_new = sum(map(count_parameters, heads.values()))
    if not layers:
        reasons = "; ".join(dict.fromkeys(left.values()))
        warnings.warn(f"no layer was replaced: {reasons}", stacklevel=2)
    return ReplacementReport(kernels, replaced, left, num_kept, num_new)


def _plan_replacement(candidate: _AttentionCandidate) -> _ReplaceableLayer | str | None:
    """Decide whether a module is an attention layer that can be replaced, without changing it.

    Returns:
        A `_ReplaceableLayer` if the module can be replaced, the reason as a string if it cannot,
        and None if it is not an attention layer.
    """
    module = candidate.module
    kind = type(module)
    if kind.__module__.partition(".")[0] == "teka":
        return None
    if isinstance(module, nn.MultiheadAttention):
        return _plan_torch_replacement(candidate)
    if kind.__name__ == "Attention" and kind.__module__ in TIMM_MODULES:
        return _plan_timm_replacement(candidate)
    if _get_attention_source(kind):
        return _plan_transformers_replacement(candidate)
    # Otherwise the innermost module with such a class name computes attention.
    names = [type(part).__name__ for part in module.modules()]
    is_innermost = sum("Attention" in part for part in names) == 1
    return UNSUPPORTED if is_innermost and "Attention" in kind.__name__ else None


def _plan_torch_replacement(candidate: _AttentionCandidate) -> _ReplaceableLayer | str:
    layer = candidate.module
    has_other_sizes = not layer.embed_dim == layer.kdim == layer.vdim
    if not candidate.is_self_attention or (candidate.needs_positions and has_other_sizes):
        return OTHER_TOKENS
    is_subclass = type(layer) is not nn.MultiheadAttention
    if is_subclass or layer.bias_k is not None or layer.add_zero_attn:
        return SUBCLASS
    main_input = getattr(candidate.enclosing_hf_model, "main_input_name", None)
    if candidate.needs_grid and main_input == "pixel_values":
        return UNPLACED

    def install(heads: AttentionHeads) -> None:
        # Change the class in place, so that hooks and layers that are used twice are kept.
        layer.__class__ = MultiheadAttention
        layer.heads = heads
        # Otherwise nn.TransformerEncoderLayer computes softmax attention itself.
        layer._qkv_same_embed_dim = False
        if candidate.needs_positions:
            heads.register_forward_pre_hook(_refuse_cross_attention)

    return _ReplaceableLayer(layer.num_heads, layer.head_dim, install, {"num_axes": 1})


def _refuse_cross_attention(_: nn.Module, arguments: tuple[Any, ...]) -> None:
    """Forward pre-hook that refuses cross-attention, whose key positions are unknown."""
    num_queries, num_keys = (tensor.shape[2] for tensor in arguments[:2])
    if num_queries != num_keys:
        raise wrong_value(
            "the number of keys",
            num_keys,
            f"the number of queries, {num_queries}",
            "Cross-attention needs relative=None.",
        )


def _plan_timm_replacement(candidate: _AttentionCandidate) -> _ReplaceableLayer | str:
    layer = candidate.module
    position_options: dict[str, Any] = {}
    if candidate.needs_grid:
        owner = next((part for part in candidate.parents if hasattr(part, "patch_embed")), None)
        patches = getattr(getattr(owner, "patch_embed", None), "grid_size", None)
        if patches is None:
            return UNPLACED
        if not isinstance(getattr(owner, "patch_drop", None), nn.Identity | None):
            return SUBSET
        num_prefix_tokens = getattr(owner, "num_prefix_tokens", 0)
        position_options = {"grid": Grid(tuple(patches)), "num_prefix_tokens": num_prefix_tokens}

    def install(heads: AttentionHeads) -> None:
        layer.__class__ = TimmAttention
        layer.heads = heads

    dim_head = layer.qkv.out_features // 3 // layer.num_heads
    return _ReplaceableLayer(layer.num_heads, dim_head, install, position_options)


def _find_first_integer(objects: tuple[object, ...], names: tuple[str, ...]) -> int:
    """Return the first attribute of the objects that is a positive integer, or 0 if there is none.

    Libraries have different names for the same size. All names are tried for the first object, then
    for the next one.
    """
    sizes = (getattr(holder, name, None) for holder in objects for name in names)
    return next((size for size in sizes if isinstance(size, int) and size > 0), 0)


@cache
def _get_attention_source(module_class: type[nn.Module]) -> str:
    """Return the source code of the forward method of a Hugging Face attention class.

    Return "" if the class does not use the `AttentionInterface` of transformers, because its
    attention can then not be replaced.
    """
    if not module_class.__module__.startswith("transformers.models."):
        return ""
    source = inspect.getsource(module_class.forward)
    return source if "attention_interface" in source else ""


def _plan_transformers_replacement(candidate: _AttentionCandidate) -> _ReplaceableLayer | str:
    from teka.integrations.transformers.attention import (
        REPLACED,
        REPLACED_HEADS,
        UNSUPPORTED_ARGUMENTS,
        find_patch_grid,
        refuse_to_save,
    )

    layer = candidate.module
    model = candidate.enclosing_hf_model
    config = getattr(layer, "config", None)
    if not getattr(model, "_can_set_attn_implementation", lambda: True)():
        return "the model does not support set_attn_implementation"
    # All layers of a model share the implementation of attention.
    shared = layer if model is None else model
    sources = "".join({_get_attention_source(type(part)) for part in shared.modules()})
    has_bias = any(bias in path for path, _ in shared.named_parameters() for bias in BIAS_NAMES)
    if has_bias or any(f" {argument}=" in sources for argument in UNSUPPORTED_ARGUMENTS):
        return BIASED
    layer_types = getattr(config, "layer_types", None)
    has_window = getattr(config, "sliding_window", None)
    if layer_types:
        has_window = any(word in kind for kind in layer_types for word in WINDOW_TYPES)
    if has_window and (layer_types or getattr(config, "use_sliding_window", True)):
        return WINDOWED
    if not candidate.is_self_attention:
        return OTHER_TOKENS
    if candidate.needs_positions and _find_first_integer((layer,), REDUCTION_NAMES) > 1:
        return COARSER_KEYS
    parent_classes = [type(parent).__name__ for parent in candidate.parents]
    is_masked = getattr(config, "model_type", "") == "vit_mae"
    if candidate.needs_positions and (is_masked or "VideoMAEForPreTraining" in parent_classes):
        return SUBSET
    patches = find_patch_grid(config)
    if candidate.needs_grid and not _has_known_positions(candidate, patches):
        return UNPLACED
    num_heads = _find_first_integer((layer, config), NUM_HEADS_NAMES)
    dim_head = _find_first_integer((layer,), HEAD_SIZE_NAMES)
    if not dim_head and num_heads:
        dim_head = getattr(config, "hidden_size", 0) // num_heads
    if not (num_heads and dim_head):
        return "its number of heads or head size is unknown"

    def install(heads: AttentionHeads) -> None:
        if model is not None:
            model.set_attn_implementation(REPLACED)
        layer.config._attn_implementation = REPLACED  # it may have a copy of the model's config
        setattr(layer, REPLACED_HEADS, heads)
        for parent in candidate.parents:
            if hasattr(parent, "save_pretrained"):
                vars(parent).update(save_pretrained=refuse_to_save, push_to_hub=refuse_to_save)

    return _ReplaceableLayer(
        num_heads, dim_head, install, {"num_axes": 1 if patches is None else patches.num_axes}
    )


def _has_known_positions(candidate: _AttentionCandidate, patches: Grid | None) -> bool:
    """Return True if the config of a Hugging Face layer determines the positions of its tokens.

    This is the case if the tokens are a sequence, or the patches of images of known size.
    """
    from teka.integrations.transformers.attention import NUM_CLASS_TOKENS

    config = getattr(candidate.module, "config", None)
    model_type = str(getattr(config, "model_type", ""))
    if patches is not None:
        return model_type in NUM_CLASS_TOKENS
    main_input = getattr(candidate.enclosing_hf_model, "main_input_name", "input_ids")
    is_text = hasattr(config, "vocab_size") and main_input != "pixel_values"
    is_sequence = is_text and "qformer" not in model_type
    is_causal = getattr(candidate.module, "is_causal", False) is True
    return is_sequence or main_input in SEQUENCE_INPUTS or is_causal


class TimmAttention(nn.Module):
    """Attention layer of timm that uses teka's kernels instead of softmax.

    `replace_attention` turns an existing layer of timm into this class, in place: it changes the
    class of the layer and adds the attribute `heads`. The projections of the layer do not change.
    """

    def forward(
        self,
        x: Float[Tensor, "batch tokens dim"],
        attn_mask: Float[Tensor, "..."] | None = None,
        is_causal: bool = False,
    ) -> Float[Tensor, "batch tokens dim"]:
        """Return the output tokens of the layer. The mask must be None or causal."""
        layer: Any = self
        query, key, value = (
            layer.qkv(x).unflatten(-1, (3, layer.num_heads, -1)).permute(2, 0, 3, 1, 4)
        )
        query, key = layer.q_norm(query), layer.k_norm(key)
        attended = layer.heads(query, key, value, is_causal=is_causal or is_causal_mask(attn_mask))
        joined = attended.transpose(1, 2).flatten(2)
        if getattr(layer, "norm", None) is not None:
            joined = layer.norm(joined)
        if getattr(layer, "gate", None) is not None:
            joined = joined * layer.gate(x).sigmoid()
        return layer.proj_drop(layer.proj(joined))
