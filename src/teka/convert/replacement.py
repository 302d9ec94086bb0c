"""Replacement of the attention in models of other libraries: projections are kept, and teka's kernels attend."""

import ast
import inspect
import textwrap
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
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

# Reasons why a layer is left. The first ones hold for every kernel.
OTHER_TOKENS = "it attends to other tokens than its own"
BIASED = "it adds a bias to the attention weights or selects keys, which teka's kernels cannot"
WINDOWED = "its model limits attention to a window of keys"
MASKED = "its model has an attention mask that is neither causal nor padding"
FIXED = "its model does not support set_attn_implementation"
UNKNOWN_SIZE = "its number of heads or their size is not known"
UNSUPPORTED = "attention of this class is not supported"
# Those hold for relative kernels only.
COARSER_KEYS = "its keys are on a coarser grid than its queries; relative=None replaces it"
SUBSET = "it may receive only some of the patches, at unknown positions; relative=None replaces it"
UNPLACED = "the positions of its tokens are not known; give their grid, or relative=None"
# Model types of transformers whose tokens are patches alone, in row-major order.
PATCHES_ONLY = frozenset({"ijepa", "siglip_vision_model", "videomae"})
CROSS = frozenset(
    {"encoder_attn", "crossattention", "cross_attn"}
)  # what models of transformers call such attention
TIMM_ATTENTION = ("timm.layers.attention", "timm.models.vision_transformer")
KNOWN = "torch.nn.MultiheadAttention, or the attention of timm's vision transformers or of transformers' models"


@dataclass(frozen=True)
class ReplacementReport:
    """Layers that `replace_attention` replaced, and layers that it could not replace.

    >>> import torch, teka
    >>> model = torch.nn.ModuleDict({
    ...     "attention": torch.nn.MultiheadAttention(16, 2), "mlp": torch.nn.Linear(16, 16)
    ... })
    >>> report = teka.convert.replace_attention(model, relative="decay", num_axes=1)
    >>> report.replaced, report.num_kept, report.num_new
    ({'attention': 'torch.nn.MultiheadAttention'}, 1360, 2)

    Attributes:
        kernels: Names of the new kernels.
        replaced: Class that each replaced layer had, by name of the layer.
        left: Reason why a layer was not replaced, by name of the layer.
        num_kept: Number of parameters that the model keeps.
        num_new: Number of new parameters.
    """

    kernels: str  # "content kernel × relative kernel"
    replaced: dict[str, str]
    left: dict[str, str]
    num_kept: int  # parameters of the model before, all of which it still has
    num_new: int  # parameters of the kernels

    def __str__(self) -> str:
        layers = (
            "1 layer attends" if len(self.replaced) == 1 else f"{len(self.replaced)} layers attend"
        )
        lines = [
            f"{layers} by {self.kernels} now; {self.num_kept:,} parameters kept, {self.num_new:,} new."
        ]
        lines = lines if self.replaced else ["No layer was replaced."]
        lines += [
            f"  {name or 'the model itself'}: was {was}" for name, was in self.replaced.items()
        ]
        lines += [
            f"  {name or 'the model itself'}: left, because {reason}"
            for name, reason in self.left.items()
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class Found:
    """A layer with attention, and either the way to replace it or the reason why it is left."""

    was: str
    dim_head: int = 0
    num_heads: int = 0
    attend_by: Callable[[AttentionHeads], nn.Module] | None = (
        None  # make the layer that replaces it
    )
    reason: str = ""
    num_axes: int = 1  # of its tokens, if no grid is known
    grid: Grid | None = None  # of its tokens, if its model says it
    num_prefix_tokens: int = 0
    blocked: object = None  # the config whose attention implementation has to stay


def replace_attention(
    model: nn.Module, *, grid: Grid | None = None, num_prefix_tokens: int = 0, **options: Any
) -> ReplacementReport:
    """Replace the attention of a model by teka's kernels, in place, and keep all its parameters.

    Supported are `torch.nn.MultiheadAttention` and modules that contain it, such as `torch.nn.TransformerEncoder`, the
    attention of timm's vision transformers, and the layers of transformers that support `attn_implementation`. The new
    kernels are `AttentionHeads` in the layers, and their parameters are trained with those of the model. With
    kernel="softmax" and relative=None the outputs change by rounding only. With other kernels the model has to be
    trained again; see `distill_attention`.

    Layers that cannot be replaced are unchanged and listed in the report with the reason: attention with position
    biases or sliding windows, and, for a relative kernel, attention whose tokens have unknown positions.

    A replaced model of transformers cannot be saved by `save_pretrained`, which would lose the replacement. Save its
    `state_dict`, and load it into a model whose attention was replaced in the same way.

    >>> import torch, teka
    >>> model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, batch_first=True), 2)
    >>> print(teka.convert.replace_attention(model, grid=teka.Grid((3, 4))))
    2 layers attend by squared_relu × rotary now; 137,504 parameters kept, 32 new.
      layers.0.self_attn: was torch.nn.MultiheadAttention
      layers.1.self_attn: was torch.nn.MultiheadAttention

    Args:
        model: The model.
        grid: The grid of its tokens, after the prefix. By default that of timm's and transformers' image models, and a
            row for text, audio and `torch.nn.MultiheadAttention`. A `teka.on` around a call takes precedence.
        num_prefix_tokens: Number of first tokens without a position. Image models of timm and transformers define it.
        **options: Options of the kernels, as for `AttentionHeads`.

    Raises:
        ValueError: The model has no attention of a supported class, or options are invalid. The model is unchanged.

    Warns:
        UserWarning: No layer was replaced.
    """
    check_module("model", model)
    if grid is not None:
        check_instance("grid", grid, Grid)
    check_sizes({"num_prefix_tokens": num_prefix_tokens}, 0)
    placed = AttentionOptions(**{"num_axes": 1, **options}).relative is not None
    found = {
        name: layer
        for name, part in model.named_modules()
        if (layer := _look_at(model, name, part, placed, grid))
    }
    if not any(layer.reason != UNSUPPORTED for layer in found.values()):
        known = "; ".join(
            [KNOWN, *(f"{name} is a {layer.was}" for name, layer in list(found.items())[:1])]
        )
        raise wrong_value(
            "model", type(model).__name__, f"a model with attention that can be replaced: {known}"
        )
    blocked = {
        id(layer.blocked): layer.reason for layer in found.values() if layer.blocked is not None
    }
    for name, layer in found.items():
        reason = blocked.get(id(getattr(model.get_submodule(name), "config", None)))
        if layer.attend_by is not None and reason is not None:
            found[name] = replace(layer, attend_by=None, reason=reason)
    able = {name: layer for name, layer in found.items() if layer.attend_by is not None}
    num_kept = sum(parameter.numel() for parameter in model.parameters())
    made: dict[str, AttentionHeads] = {}
    for name, layer in able.items():
        place = (layer.grid, layer.num_prefix_tokens) if grid is None else (grid, num_prefix_tokens)
        num_axes = layer.num_axes if place[0] is None else place[0].num_axes
        made[name] = AttentionHeads(
            *(layer.dim_head, layer.num_heads),
            grid=place[0],
            num_prefix_tokens=place[1] if place[0] is not None else num_prefix_tokens,
            **{"num_axes": num_axes, **options},
        )
    new: dict[nn.Module, nn.Module] = {}
    for name, heads in made.items():
        attend_by, old = able[name].attend_by, model.get_submodule(name)
        assert attend_by is not None
        like = next(iter([*old.parameters(), *model.parameters()]))
        heads.to(like.device, like.dtype if like.is_floating_point() else None)
        new[old] = attend_by(heads).train(old.training)
    for name, old in list(
        model.named_modules(remove_duplicate=False)
    ):  # one layer may be used in several places
        if name and old in new:
            model.set_submodule(name, new[old])
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder) and made:
            module.use_nested_tensor = False  # only torch's own attention supports it
    num_new = sum(parameter.numel() for heads in made.values() for parameter in heads.parameters())
    kernels = name_kernels(*next(iter(made.values())).current_kernels()) if made else ""
    reasons = {name: layer.reason for name, layer in found.items() if layer.attend_by is None}
    report = ReplacementReport(
        kernels, {name: layer.was for name, layer in able.items()}, reasons, num_kept, num_new
    )
    if not made:
        warnings.warn(
            f"no layer was replaced: {'; '.join(dict.fromkeys(reasons.values()))}", stacklevel=2
        )
    return report


def _look_at(
    model: nn.Module, name: str, module: nn.Module, placed: bool, grid: Grid | None
) -> Found | None:
    """Return what a module is if it has attention, else None; `placed` says if tokens need positions."""
    kind, home = type(module), type(module).__module__
    if home.split(".")[0] == "teka":
        return None
    if isinstance(module, nn.MultiheadAttention):
        return _torch_attention(model, name, module, placed, grid)
    if kind.__name__ == "Attention" and home in TIMM_ATTENTION:
        return _timm_attention(model, name, module, placed, grid)
    if home.startswith("transformers.models.") and _interface_calls(kind):
        return _transformers_attention(model, name, module, placed, grid)
    # The innermost module whose class is named so computes it.
    inner = (part for part in module.modules() if part is not module)
    if "Attention" in kind.__name__ and not any(
        "Attention" in type(part).__name__ for part in inner
    ):
        parents = (type(part) for part in _ancestors(model, name))
        if not any(
            issubclass(one, nn.MultiheadAttention) or _interface_calls(one) for one in parents
        ):
            return Found(f"{home}.{kind.__name__}", reason=UNSUPPORTED)
    return None


def _ancestors(model: nn.Module, name: str) -> Iterator[nn.Module]:
    """Yield the modules that contain a module, the nearest one first."""
    while name:
        name = name.rpartition(".")[0]
        yield model.get_submodule(name)


def _asks_others(model: nn.Module, name: str, module: nn.Module) -> bool:
    """Whether attention is to other tokens than its own, or of a learned query, between which there are no offsets."""
    holder = type(model.get_submodule(name.rpartition(".")[0]))
    of_decoder = issubclass(holder, nn.TransformerDecoderLayer) and name.endswith("multihead_attn")
    of_pooling = "Pooling" in holder.__name__
    is_cross = getattr(module, "is_cross_attention", False) or "Cross" in type(module).__name__
    return of_decoder or of_pooling or is_cross or not CROSS.isdisjoint(name.split("."))


def _torch_attention(
    model: nn.Module, name: str, module: nn.MultiheadAttention, placed: bool, grid: Grid | None
) -> Found:
    was = "torch.nn.MultiheadAttention"
    if type(module).forward is not nn.MultiheadAttention.forward:
        return Found(
            was, reason=f"its class {type(module).__name__} has a forward method of its own"
        )
    if _asks_others(model, name, module) or (
        placed and not module.embed_dim == module.kdim == module.vdim
    ):
        return Found(was, reason=OTHER_TOKENS)
    if module.bias_k is not None or module.add_zero_attn:
        return Found(was, reason="it has add_bias_kv or add_zero_attn")
    if not name:
        return Found(
            was, reason="it is the model itself; teka.nn.MultiheadAttention takes its parameters"
        )
    kwargs = {
        "kdim": module.kdim,
        "vdim": module.vdim,
        "batch_first": module.batch_first,
        "device": "meta",
    }
    sizes = (module.embed_dim, module.num_heads, module.dropout, module.in_proj_bias is not None)
    expected = {key for key, _ in nn.MultiheadAttention(*sizes, **kwargs).named_parameters()}
    if {key for key, _ in module.named_parameters()} != expected:
        return Found(was, reason="its parameters are not those of torch.nn.MultiheadAttention")
    if any(
        (
            module._forward_hooks,
            module._forward_pre_hooks,
            module._backward_hooks,
            module._backward_pre_hooks,
        )
    ):
        return Found(was, reason="it has hooks")
    owner = _owner(model, name)
    if placed and grid is None and getattr(owner, "main_input_name", None) == "pixel_values":
        return Found(was, reason=UNPLACED)

    def attend_by(heads: AttentionHeads) -> nn.Module:
        new = MultiheadAttention(*sizes, **kwargs)
        for own, parameter in module.named_parameters():
            new.get_submodule(own.rpartition(".")[0]).register_parameter(
                own.rpartition(".")[2], parameter
            )
        new.heads = heads
        if placed:
            new.register_forward_pre_hook(_check_own_tokens, with_kwargs=True)
        return new

    return Found(was, module.head_dim, module.num_heads, attend_by)


def _check_own_tokens(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Check that keys have the positions of the queries, because the positions of other tokens are not known."""
    query, key = (
        args[place] if place < len(args) else kwargs.get(name)
        for place, name in enumerate(("query", "key"))
    )
    if isinstance(query, Tensor) and isinstance(key, Tensor) and query.shape[:-1] != key.shape[:-1]:
        expected = f"the shape of query, {tuple(query.shape)}; attention to other tokens needs relative=None"
        raise wrong_shape("key", key.shape, expected)


def _timm_attention(
    model: nn.Module, name: str, module: nn.Module, placed: bool, grid: Grid | None
) -> Found:
    timms: Any = module
    was = f"{type(module).__module__}.{type(module).__name__}"
    holders = (
        part
        for part in _ancestors(model, name)
        if hasattr(getattr(part, "patch_embed", None), "grid_size")
    )
    holder: Any = next(holders, None)
    place = {}
    if placed and grid is None:
        if holder is None or holder.patch_embed.grid_size is None:
            return Found(was, reason=UNPLACED)
        if not isinstance(getattr(holder, "patch_drop", None), nn.Identity | None):
            return Found(was, reason=SUBSET)
        sides = Grid(tuple(holder.patch_embed.grid_size))
        place = {"grid": sides, "num_prefix_tokens": getattr(holder, "num_prefix_tokens", 0)}
    heads, width = timms.num_heads, timms.qkv.out_features // 3
    return Found(was, width // heads, heads, lambda new: PackedAttention(module, new), **place)


def _transformers_attention(
    model: nn.Module, name: str, module: nn.Module, placed: bool, grid: Grid | None
) -> Found:
    from teka.integrations.transformers.attention import (
        OWN,
        OWN_HEADS,
        patch_grid,
        register_attention,
    )

    was = f"{type(module).__module__}.{type(module).__name__}"
    owner, config = _owner(model, name), getattr(module, "config", None)
    if not getattr(owner, "_can_set_attn_implementation", lambda: True)():
        return Found(was, reason=FIXED)
    reason = _unsupported_weights(model, name, module)
    if reason:
        return Found(was, reason=reason, blocked=config)
    if _asks_others(model, name, module):
        return Found(was, reason=OTHER_TOKENS)
    if placed:
        reason = _unknown_positions(model, name, module, grid)
        if reason:
            return Found(was, reason=reason)
    places, counts = (
        (module, config),
        ("num_attention_heads", "num_heads", "n_heads", "n_head", "num_attn_heads"),
    )
    heads = next(
        (size for place in places for one in counts if (size := getattr(place, one, None))), 0
    )
    dims = ("qk_head_dim", "attention_head_size", "head_dim", "key_value_proj_dim")
    dim_head = next(
        (size for one in dims if isinstance(size := getattr(module, one, None), int)), 0
    )
    dim_head = dim_head or (
        getattr(config, "hidden_size", 0) // heads if isinstance(heads, int) and heads else 0
    )
    if not (isinstance(heads, int) and heads and dim_head):
        return Found(was, reason=UNKNOWN_SIZE)

    def attend_by(new: AttentionHeads) -> nn.Module:
        register_attention()
        if owner is not None:
            owner.set_attn_implementation(OWN)
        layer: Any = module
        layer.config._attn_implementation = (
            OWN  # some models give their layers a copy of the config
        )
        setattr(module, OWN_HEADS, new)
        for part in _ancestors(model, name):
            if hasattr(part, "save_pretrained"):
                vars(part).update(save_pretrained=_SaveRefusal(), push_to_hub=_SaveRefusal())
        return module

    patches = patch_grid(config)
    return Found(
        was, dim_head, heads, attend_by, num_axes=1 if patches is None else patches.num_axes
    )


def _owner(model: nn.Module, name: str) -> Any:
    """Return the nearest model of transformers that contains a module, or None."""
    return next(
        (part for part in _ancestors(model, name) if hasattr(part, "set_attn_implementation")), None
    )


@cache
def _interface_calls(kind: type[nn.Module]) -> tuple[tuple[ast.Call, ...], bool] | None:
    """Return the calls of transformers' attention interface in a class, and if it changes the mask before, or None."""
    if not kind.__module__.startswith("transformers.models."):
        return None
    source = inspect.getsource(kind.forward)
    if "attention_interface" not in source:
        return None
    nodes = list(ast.walk(ast.parse(textwrap.dedent(source))))
    calls = (node for node in nodes if isinstance(node, ast.Call))
    named = tuple(
        node
        for node in calls
        if isinstance(node.func, ast.Name) and node.func.id == "attention_interface"
    )
    assigned = (
        node
        for node in nodes
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in MASKS
    )
    return named, not all(isinstance(node.value, ast.Name | ast.IfExp) for node in assigned)


# Names of a mask that a layer of transformers only passes on.
MASKS = ("attention_mask", "mask", "current_attention_mask", "None")


def _unsupported_weights(model: nn.Module, name: str, module: nn.Module) -> str:
    """Return why no kernel can compute the attention weights of a layer of transformers, or an empty string."""
    from teka.integrations.transformers.attention import UNSUPPORTED as UNSUPPORTED_ARGUMENTS

    owner, config = _owner(model, name), getattr(module, "config", None)
    calls = _interface_calls(type(module))
    assert calls is not None
    for call in calls[0]:
        named = {keyword.arg: keyword.value for keyword in call.keywords}
        mask = call.args[4] if len(call.args) > 4 else named.get("attention_mask")
        values = [named[argument] for argument in UNSUPPORTED_ARGUMENTS if argument in named]
        if (
            calls[1]
            or (mask is not None and ast.unparse(mask) not in MASKS)
            or not all(_is_none(module, value) for value in values)
        ):
            return BIASED
    biases = ("relative_position_bias", "relative_attention_bias", "rel_pos")
    if owner is not None and any(
        bias in key for key, _ in owner.named_parameters() for bias in biases
    ):
        return BIASED
    kinds, window = getattr(config, "layer_types", None), getattr(config, "sliding_window", None)
    if kinds:
        if any(
            word in kind
            for kind in kinds
            for word in ("sliding", "chunked", "local", "sparse", "window")
        ):
            return WINDOWED
    elif window and getattr(config, "use_sliding_window", True):
        return WINDOWED
    if hasattr(config, "vocab_size"):
        for part in _ancestors(model, name):
            words = ("or_mask_function", "and_mask_function", "block_sequence_ids")
            if hasattr(part, "set_attn_implementation") and any(
                word in inspect.getsource(type(part).forward) for word in words
            ):
                return MASKED
    return ""


def _is_none(module: nn.Module, value: ast.expr) -> bool:
    """Return True if an argument is None, or an attribute of the module that is None."""
    if isinstance(value, ast.Attribute) and ast.unparse(value.value) == "self":
        return getattr(module, value.attr, value) is None
    return isinstance(value, ast.Constant) and value.value is None


def _unknown_positions(model: nn.Module, name: str, module: nn.Module, grid: Grid | None) -> str:
    """Return why the positions of the tokens of a layer of transformers are not known, or an empty string."""
    from teka.integrations.transformers.attention import NUM_CLASS_TOKENS, patch_grid

    config = getattr(module, "config", None)
    kind = str(getattr(config, "model_type", ""))
    reductions = (
        getattr(module, one, 1)
        for one in ("sequence_reduction_ratio", "spatial_reduction_ratio", "sr_ratio")
    )
    if any(isinstance(one, int) and one > 1 for one in reductions):
        return COARSER_KEYS
    parents = [type(part).__name__ for part in _ancestors(model, name)]
    if kind == "vit_mae" or "VideoMAEForPreTraining" in parents:
        return SUBSET
    if grid is not None:
        return ""
    if patch_grid(config) is not None:
        return "" if kind in NUM_CLASS_TOKENS or kind in PATCHES_ONLY else UNPLACED
    source = getattr(_owner(model, name), "main_input_name", "input_ids")
    in_row = hasattr(config, "vocab_size") and source != "pixel_values" and "qformer" not in kind
    in_row = in_row or source in ("input_features", "input_values", "past_values")
    return "" if in_row or getattr(module, "is_causal", False) is True else UNPLACED


class _SaveRefusal:
    """The methods `save_pretrained` and `push_to_hub` of a model of transformers whose attention was replaced."""

    def __call__(self, *_: object, **__: object) -> None:
        raise ValueError(
            "save_pretrained cannot save replaced attention: from_pretrained would load the original attention. Save "
            "model.state_dict(), and load it after replace_attention with the same arguments."
        )

    def __reduce__(self) -> tuple[Callable[[], "_SaveRefusal"], tuple[()]]:
        """Copy and unpickle; a process that unpickles the model has to know the attention implementation."""
        return _refuse_to_save, ()


def _refuse_to_save() -> _SaveRefusal:
    from teka.integrations.transformers.attention import register_attention

    register_attention()
    return _SaveRefusal()


class PackedAttention(nn.Module):
    """timm's `Attention` that attends by teka's kernels: one linear map to queries, keys and values, and its others."""

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
        """Attend; of masks the causal one alone, others are a ValueError."""
        query, key, value = (
            self.qkv(x).unflatten(-1, (3, self.heads.heads, -1)).permute(2, 0, 3, 1, 4)
        )
        query, key = (
            one if norm is None else norm(one)
            for norm, one in ((self.q_norm, query), (self.k_norm, key))
        )
        attended = self.heads(query, key, value, is_causal=is_causal or is_causal_mask(attn_mask))
        joined = attended.transpose(1, 2).flatten(2)
        joined = joined if self.norm is None else self.norm(joined)
        joined = joined if self.gate is None else joined * self.gate(x).sigmoid()
        return self.proj_drop(self.proj(joined))
