"""Replacement of the attention in models of PyTorch, timm and transformers by teka's kernels."""

import inspect
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from teka.checks import check_instance, check_module, check_sizes
from teka.errors import wrong_shape, wrong_value
from teka.grid import Grid
from teka.nn import AttentionHeads, MultiheadAttention
from teka.nn.head_groups import name_kernels
from teka.nn.multihead_attention import is_causal_mask
from teka.nn.options import AttentionOptions

# Reasons why a layer is not replaced. The first ones apply to every kernel.
OTHER_TOKENS = "it attends to other tokens than its own"
BIASED = "it adds a bias to the attention weights or selects keys, which teka's kernels cannot"
WINDOWED = "its model limits attention to a window of keys"
FIXED = "its model does not support set_attn_implementation"
SUBCLASS = "it is a subclass or has hooks, bias_kv or zero_attn"
WHOLE_MODEL = "it is the model itself; teka.nn.MultiheadAttention takes its parameters"
UNKNOWN_SIZE = "its number of heads or their size is not known"
UNSUPPORTED = "attention of this class is not supported"
# These apply to relative kernels only.
COARSER_KEYS = "its keys are on a coarser grid than its queries; relative=None replaces it"
SUBSET = "it may receive only some of the patches, at unknown positions; relative=None replaces it"
UNPLACED = "the positions of its tokens are not known; give their grid, or relative=None"

SUPPORTED_CLASSES = (
    "torch.nn.MultiheadAttention, or the attention of timm's vision transformers or of "
    "transformers' models"
)
TIMM_MODULES = ("timm.layers.attention", "timm.models.vision_transformer")
# Model types of transformers whose tokens are patches alone, in row-major order.
PATCHES_ONLY = frozenset({"ijepa", "siglip_vision_model", "videomae"})
# Names of cross-attention in models of transformers.
CROSS_NAMES = frozenset({"encoder_attn", "crossattention", "cross_attn"})
# Parts of the names of parameters that bias the attention weights in models of transformers.
BIAS_NAMES = ("relative_position_bias", "relative_attention_bias", "rel_pos")
WINDOW_TYPES = ("sliding", "chunked", "local", "sparse", "window")
NUM_HEADS_NAMES = ("num_attention_heads", "num_heads", "n_heads", "n_head", "num_attn_heads")
HEAD_SIZE_NAMES = ("qk_head_dim", "attention_head_size", "head_dim", "key_value_proj_dim")
REDUCTION_NAMES = ("sequence_reduction_ratio", "spatial_reduction_ratio", "sr_ratio")


@dataclass(frozen=True)
class ReplacementReport:
    """Result of `replace_attention`.

    >>> import torch, teka
    >>> attention = torch.nn.MultiheadAttention(16, 2)
    >>> model = torch.nn.ModuleDict({"attention": attention, "mlp": torch.nn.Linear(16, 16)})
    >>> report = teka.convert.replace_attention(model, relative="decay", num_axes=1)
    >>> report.replaced, report.num_kept, report.num_new
    ({'attention': 'torch.nn.MultiheadAttention'}, 1360, 2)

    Attributes:
        kernels: Content kernel and relative kernel.
        replaced: Former class of each replaced layer, by its name.
        left: Reason why a layer was not replaced, by its name.
        num_kept: Number of parameters that the model had before. All of them are kept.
        num_new: Number of parameters of the kernels.
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
            lines.append(f"  {name}: was {former_class}")
        for name, reason in self.left.items():
            lines.append(f"  {name or 'the model itself'}: left, because {reason}")
        return "\n".join(lines)


@dataclass(frozen=True)
class _Layer:
    """Layer with attention, and either how to replace it or the reason why it stays.

    Attributes:
        former_class: Name of its class.
        reason: Reason why it stays, or "".
        dim_head: Size of a head.
        num_heads: Number of heads.
        replace: Makes the layer with these heads that replaces it.
        num_axes: Number of axes of its tokens, if no grid is known.
        grid: Grid of its tokens, if the model defines it.
        num_prefix_tokens: Number of tokens before the grid.
    """

    former_class: str
    reason: str = ""
    dim_head: int = 0
    num_heads: int = 0
    replace: Callable[[AttentionHeads], nn.Module] | None = None
    num_axes: int = 1
    grid: Grid | None = None
    num_prefix_tokens: int = 0


def replace_attention(
    model: nn.Module, *, grid: Grid | None = None, num_prefix_tokens: int = 0, **options: Any
) -> ReplacementReport:
    """Replace the attention of a model by teka's kernels, in place, and keep all its parameters.

    Supported are `torch.nn.MultiheadAttention` and modules that contain it, such as
    `torch.nn.TransformerEncoder`, the attention of timm's vision transformers, and the layers of
    transformers that support `attn_implementation`. The new kernels are `AttentionHeads` in the
    layers, and their parameters are trained with those of the model. With kernel="softmax" and
    relative=None, the outputs change by rounding only. With other kernels the model must be trained
    again; see `distill_attention`.

    Layers that cannot be replaced stay and are listed in the report with the reason: attention with
    position biases or sliding windows, and, for a relative kernel, attention whose tokens have
    unknown positions.

    A replaced model of transformers cannot be saved by `save_pretrained`, which would lose the
    replacement. Save its `state_dict`, and load it into a model whose attention was replaced in the
    same way.

    >>> import torch, teka
    >>> layer = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 2)
    >>> print(teka.convert.replace_attention(model, grid=teka.Grid((3, 4))))
    2 layers attend by squared_relu × rotary now; 137,504 parameters kept, 32 new.
      layers.0.self_attn: was torch.nn.MultiheadAttention
      layers.1.self_attn: was torch.nn.MultiheadAttention

    Args:
        model: The model.
        grid: Grid of the tokens after the prefix. By default that of image models of timm and
            transformers, and a sequence for text, audio and `torch.nn.MultiheadAttention`. A
            `teka.on` around a call takes precedence.
        num_prefix_tokens: Number of first tokens without a position. Image models of timm and
            transformers define it.
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
    needs_positions = AttentionOptions(**{"num_axes": 1, **options}).relative is not None
    layers: dict[str, _Layer] = {}
    for name, module in model.named_modules():
        layer = _describe_layer(model, name, module, needs_positions, grid)
        if layer is not None:
            layers[name] = layer
    if all(layer.reason == UNSUPPORTED for layer in layers.values()):
        classes = [f"; {name} is a {layer.former_class}" for name, layer in layers.items()]
        expected = f"a model with attention of {SUPPORTED_CLASSES}{''.join(classes[:1])}"
        raise wrong_value("model", type(model).__name__, expected)

    num_kept = sum(parameter.numel() for parameter in model.parameters())
    able = {name: layer for name, layer in layers.items() if layer.replace is not None}
    heads = {
        name: _make_heads(layer, grid, num_prefix_tokens, options) for name, layer in able.items()
    }
    new: dict[nn.Module, nn.Module] = {}
    for name, layer in able.items():
        old = model.get_submodule(name)
        parameter = next(iter([*old.parameters(), *model.parameters()]))
        dtype = parameter.dtype if parameter.is_floating_point() else None
        heads[name].to(parameter.device, dtype)
        assert layer.replace is not None
        new[old] = layer.replace(heads[name]).train(old.training)
    # A layer may be used in several places.
    for name, old in list(model.named_modules(remove_duplicate=False)):
        if old in new:
            model.set_submodule(name, new[old])
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder) and new:
            module.use_nested_tensor = False  # only torch's own attention supports it

    report = ReplacementReport(
        name_kernels(*next(iter(heads.values())).current_kernels()) if heads else "",
        {name: layer.former_class for name, layer in able.items()},
        {name: layer.reason for name, layer in layers.items() if layer.replace is None},
        num_kept,
        sum(parameter.numel() for made in heads.values() for parameter in made.parameters()),
    )
    if not new:
        reasons = "; ".join(dict.fromkeys(report.left.values()))
        warnings.warn(f"no layer was replaced: {reasons}", stacklevel=2)
    return report


def _make_heads(
    layer: _Layer, grid: Grid | None, num_prefix_tokens: int, options: dict[str, Any]
) -> AttentionHeads:
    if grid is None and layer.grid is not None:
        grid, num_prefix_tokens = layer.grid, layer.num_prefix_tokens
    num_axes = layer.num_axes if grid is None else grid.num_axes
    options = {"num_axes": num_axes, **options}
    sizes = (layer.dim_head, layer.num_heads)
    return AttentionHeads(*sizes, grid=grid, num_prefix_tokens=num_prefix_tokens, **options)


def _describe_layer(
    model: nn.Module, name: str, module: nn.Module, needs_positions: bool, grid: Grid | None
) -> _Layer | None:
    """Return the description of a module with attention, or None."""
    kind = type(module)
    library = kind.__module__.partition(".")[0]
    if library == "teka":
        return None
    if isinstance(module, nn.MultiheadAttention):
        return _torch_layer(model, name, module, needs_positions, grid)
    former_class = f"{kind.__module__}.{kind.__name__}"
    if kind.__name__ == "Attention" and kind.__module__ in TIMM_MODULES:
        return _timm_layer(model, name, module, needs_positions and grid is None, former_class)
    if _interface_source(kind):
        reason = _transformers_reason(model, name, module, needs_positions, grid)
        if reason:
            return _Layer(former_class, reason)
        return _transformers_layer(model, name, module, former_class)
    # Otherwise the innermost module with such a class name computes attention.
    children = [part for part in module.modules() if part is not module]
    if "Attention" not in kind.__name__ or any(
        "Attention" in type(child).__name__ for child in children
    ):
        return None
    for parent in _ancestors(model, name):
        if isinstance(parent, nn.MultiheadAttention) or _interface_source(type(parent)):
            return None
    return _Layer(former_class, UNSUPPORTED)


def _ancestors(model: nn.Module, name: str) -> Iterator[nn.Module]:
    """Yield the modules that contain a module, the nearest first."""
    while name:
        name = name.rpartition(".")[0]
        yield model.get_submodule(name)


def _attends_to_other_tokens(model: nn.Module, name: str, module: nn.Module) -> bool:
    """Return True for cross-attention and for pooling by a learned query."""
    parent = type(model.get_submodule(name.rpartition(".")[0]))
    return (
        (issubclass(parent, nn.TransformerDecoderLayer) and name.endswith("multihead_attn"))
        or "Pooling" in parent.__name__
        or getattr(module, "is_cross_attention", False)
        or "Cross" in type(module).__name__
        or not CROSS_NAMES.isdisjoint(name.split("."))
    )


def _torch_layer(
    model: nn.Module,
    name: str,
    module: nn.MultiheadAttention,
    needs_positions: bool,
    grid: Grid | None,
) -> _Layer:
    former_class = "torch.nn.MultiheadAttention"
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    owner = _transformers_model(model, name)
    has_other_sizes = not module.embed_dim == module.kdim == module.vdim
    reason = ""
    if _attends_to_other_tokens(model, name, module) or (needs_positions and has_other_sizes):
        reason = OTHER_TOKENS
    elif (
        type(module) is not nn.MultiheadAttention
        or any(hooks)
        or module.bias_k is not None
        or module.add_zero_attn
    ):
        reason = SUBCLASS
    elif not name:
        reason = WHOLE_MODEL
    elif needs_positions and grid is None:
        takes_images = getattr(owner, "main_input_name", None) == "pixel_values"
        reason = UNPLACED if takes_images else ""
    if reason:
        return _Layer(former_class, reason)

    def replace(heads: AttentionHeads) -> nn.Module:
        new = MultiheadAttention(
            module.embed_dim,
            module.num_heads,
            module.dropout,
            module.in_proj_bias is not None,
            kdim=module.kdim,
            vdim=module.vdim,
            batch_first=module.batch_first,
            device="meta",
        )
        for path, parameter in module.named_parameters():
            parent, _, attribute = path.rpartition(".")
            new.get_submodule(parent).register_parameter(attribute, parameter)
        new.heads = heads
        if needs_positions:
            new.register_forward_pre_hook(_check_own_tokens, with_kwargs=True)
        return new

    return _Layer(
        former_class, dim_head=module.head_dim, num_heads=module.num_heads, replace=replace
    )


def _check_own_tokens(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Check that keys have the positions of queries. The positions of others are not known."""
    arguments = {**dict(zip(("query", "key"), args, strict=False)), **kwargs}
    query, key = arguments["query"], arguments["key"]
    if isinstance(query, Tensor) and isinstance(key, Tensor) and query.shape[:-1] != key.shape[:-1]:
        expected = f"the shape of query, {tuple(query.shape)}"
        hint = "Attention to other tokens needs relative=None."
        raise wrong_shape("key", key.shape, expected, hint)


def _timm_layer(
    model: nn.Module, name: str, module: nn.Module, needs_grid: bool, former_class: str
) -> _Layer:
    attention: Any = module
    grid, num_prefix_tokens = None, 0
    if needs_grid:
        for parent in _ancestors(model, name):
            patches = getattr(getattr(parent, "patch_embed", None), "grid_size", None)
            if patches is not None:
                if not isinstance(getattr(parent, "patch_drop", None), nn.Identity | None):
                    return _Layer(former_class, SUBSET)
                grid = Grid(tuple(patches))
                num_prefix_tokens = getattr(parent, "num_prefix_tokens", 0)
                break
        else:
            return _Layer(former_class, UNPLACED)
    return _Layer(
        former_class,
        dim_head=attention.qkv.out_features // 3 // attention.num_heads,
        num_heads=attention.num_heads,
        replace=lambda heads: PackedAttention(module, heads),
        grid=grid,
        num_prefix_tokens=num_prefix_tokens,
    )


def _transformers_layer(
    model: nn.Module, name: str, module: nn.Module, former_class: str
) -> _Layer:
    from teka.integrations.transformers.attention import (
        REPLACED,
        REPLACED_HEADS,
        patch_grid,
        refuse_to_save,
    )

    config = getattr(module, "config", None)
    num_heads = _first_integer((module, config), NUM_HEADS_NAMES)
    dim_head = _first_integer((module,), HEAD_SIZE_NAMES)
    if not dim_head and num_heads:
        dim_head = getattr(config, "hidden_size", 0) // num_heads
    if not (num_heads and dim_head):
        return _Layer(former_class, UNKNOWN_SIZE)

    def replace(heads: AttentionHeads) -> nn.Module:
        owner = _transformers_model(model, name)
        if owner is not None:
            owner.set_attn_implementation(REPLACED)
        layer: Any = module
        layer.config._attn_implementation = REPLACED  # it may have a copy of the model's config
        setattr(module, REPLACED_HEADS, heads)
        for parent in _ancestors(model, name):
            if hasattr(parent, "save_pretrained"):
                vars(parent).update(save_pretrained=refuse_to_save, push_to_hub=refuse_to_save)
        return module

    patches = patch_grid(config)
    num_axes = 1 if patches is None else patches.num_axes
    return _Layer(
        former_class, dim_head=dim_head, num_heads=num_heads, replace=replace, num_axes=num_axes
    )


def _first_integer(holders: tuple[object, ...], names: tuple[str, ...]) -> int:
    """Return the first attribute with one of these names that is a positive integer, or 0."""
    for holder in holders:
        for name in names:
            size = getattr(holder, name, None)
            if isinstance(size, int) and size > 0:
                return size
    return 0


def _transformers_model(model: nn.Module, name: str) -> Any:
    """Return the nearest model of transformers that contains a module, or None."""
    for parent in _ancestors(model, name):
        if hasattr(parent, "set_attn_implementation"):
            return parent
    return None


@cache
def _interface_source(kind: type[nn.Module]) -> str:
    """Return the source of a class that uses transformers' attention interface, or ""."""
    if not kind.__module__.startswith("transformers.models."):
        return ""
    source = inspect.getsource(kind.forward)
    return source if "attention_interface" in source else ""


def _transformers_reason(
    model: nn.Module, name: str, module: nn.Module, needs_positions: bool, grid: Grid | None
) -> str:
    """Return the reason why a layer of transformers stays, or ""."""
    from teka.integrations.transformers.attention import NUM_CLASS_TOKENS, patch_grid
    from teka.integrations.transformers.attention import UNSUPPORTED as UNSUPPORTED_ARGUMENTS

    owner = _transformers_model(model, name)
    config = getattr(module, "config", None)
    if not getattr(owner, "_can_set_attn_implementation", lambda: True)():
        return FIXED
    # All layers of a model share the implementation of attention.
    shared = module if owner is None else owner
    sources = {_interface_source(type(part)) for part in shared.modules()}
    arguments = [f" {argument}=" for argument in UNSUPPORTED_ARGUMENTS]
    has_bias = any(bias in path for path, _ in shared.named_parameters() for bias in BIAS_NAMES)
    if has_bias or any(argument in source for source in sources for argument in arguments):
        return BIASED
    layer_types = getattr(config, "layer_types", None)
    has_window = bool(getattr(config, "sliding_window", None))
    if layer_types:
        has_window = any(word in kind for kind in layer_types for word in WINDOW_TYPES)
    elif not getattr(config, "use_sliding_window", True):
        has_window = False
    if has_window:
        return WINDOWED
    if _attends_to_other_tokens(model, name, module):
        return OTHER_TOKENS
    if not needs_positions:
        return ""
    if any(_first_integer((module,), (reduction,)) > 1 for reduction in REDUCTION_NAMES):
        return COARSER_KEYS
    model_type = str(getattr(config, "model_type", ""))
    parents = [type(part).__name__ for part in _ancestors(model, name)]
    if model_type == "vit_mae" or "VideoMAEForPreTraining" in parents:
        return SUBSET
    if grid is not None:
        return ""
    if patch_grid(config) is not None:
        return "" if model_type in NUM_CLASS_TOKENS or model_type in PATCHES_ONLY else UNPLACED
    main_input = getattr(owner, "main_input_name", "input_ids")
    is_text = hasattr(config, "vocab_size") and main_input != "pixel_values"
    is_sequence = (is_text and "qformer" not in model_type) or main_input in (
        "input_features",
        "input_values",
        "past_values",
    )
    is_causal = getattr(module, "is_causal", False) is True
    return "" if is_sequence or is_causal else UNPLACED


class PackedAttention(nn.Module):
    """Attention of timm with teka's kernels and the projections of the original layer.

    Args:
        attention: Layer of timm with one projection to queries, keys and values.
        heads: Kernels.
    """

    qkv: nn.Module
    q_norm: nn.Module | None
    k_norm: nn.Module | None
    norm: nn.Module | None
    gate: nn.Module | None
    proj: nn.Module
    proj_drop: nn.Module

    def __init__(self, attention: nn.Module, heads: AttentionHeads) -> None:
        super().__init__()
        for name in PackedAttention.__annotations__:
            setattr(self, name, getattr(attention, name, None))
        self.heads = heads

    def forward(
        self,
        x: Float[Tensor, "batch tokens dim"],
        attn_mask: Float[Tensor, "..."] | None = None,
        is_causal: bool = False,
    ) -> Float[Tensor, "batch tokens dim"]:
        """Attend to the tokens. A mask must be causal."""
        packed = self.qkv(x).unflatten(-1, (3, self.heads.heads, -1))
        query, key, value = packed.permute(2, 0, 3, 1, 4)
        query = query if self.q_norm is None else self.q_norm(query)
        key = key if self.k_norm is None else self.k_norm(key)
        attended = self.heads(query, key, value, is_causal=is_causal or is_causal_mask(attn_mask))
        joined = attended.transpose(1, 2).flatten(2)
        joined = joined if self.norm is None else self.norm(joined)
        joined = joined if self.gate is None else joined * self.gate(x).sigmoid()
        return self.proj_drop(self.proj(joined))
