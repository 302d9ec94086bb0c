"""Attention of other libraries' models, replaced in place: their linear maps stay, and teka's kernels attend."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from typing_extensions import Unpack

from teka.checks import check_class, check_module
from teka.errors import wrong_value
from teka.grid import Grid
from teka.nn import AttentionHeads, MultiheadAttention
from teka.nn.heads import pair_name
from teka.nn.multihead_attention import is_causal_mask
from teka.nn.options import PlacedKeywords

OTHER_TOKENS = "it attends to other tokens than its own"
CROSS = frozenset({"encoder_attn", "crossattention", "cross_attn"})  # what transformers' models call such attention
TIMM_ATTENTION = ("timm.layers.attention", "timm.models.vision_transformer")
KNOWN = "torch.nn.MultiheadAttention, or the attention of timm's vision transformers or of transformers' models"


@dataclass(frozen=True)
class ReplacementReport:
    """What `replace_attention` did: names of layers, with what they were, or why they are as they were.

    >>> import torch, teka
    >>> model = torch.nn.ModuleDict({"attention": torch.nn.MultiheadAttention(16, 2), "mlp": torch.nn.Linear(16, 16)})
    >>> report = teka.convert.replace_attention(model, relative="decay", num_axes=1)
    >>> report.replaced, report.num_kept, report.num_new
    ({'attention': 'torch.nn.MultiheadAttention'}, 1360, 2)
    """

    kernels: str  # "content kernel × relative kernel"
    replaced: dict[str, str]
    left: dict[str, str]
    num_kept: int  # parameters of the model before, all of which it still has
    num_new: int  # parameters of the kernels

    def __str__(self) -> str:
        layers = "1 layer attends" if len(self.replaced) == 1 else f"{len(self.replaced)} layers attend"
        lines = [f"{layers} by {self.kernels} now; {self.num_kept:,} parameters kept, {self.num_new:,} new."]
        lines += [f"  {name or 'the model itself'}: was {was}" for name, was in self.replaced.items()]
        lines += [f"  {name}: left as it was, since {reason}" for name, reason in self.left.items()]
        return "\n".join(lines)


@dataclass(frozen=True)
class Found:
    """A layer that attends: its heads, and how it is made to attend by others; or why it cannot be."""

    was: str
    dim_head: int = 0
    num_heads: int = 0
    attend_by: Callable[[AttentionHeads], nn.Module] | None = None  # what stands in its place then
    reason: str = ""
    num_axes: int = 1  # of its tokens, where no grid is known


def replace_attention(
    model: nn.Module, *, grid: Grid | None = None, num_prefix_tokens: int = 0, **options: Unpack[PlacedKeywords]
) -> ReplacementReport:
    """Make the attention of a model attend by teka's kernels, in place; every parameter that it has is kept.

    It finds `torch.nn.MultiheadAttention` and what holds it, such as `torch.nn.TransformerEncoder`, the attention of
    timm's vision transformers, and that of every model of transformers which takes `attn_implementation`. The new
    kernels are `AttentionHeads` in the layers, whose parameters are trained with the model's. With kernel="softmax" and
    relative=None nothing changes but rounding. Otherwise the model has to learn its new attention: `distill_attention`.

    >>> import torch, teka
    >>> model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, batch_first=True), 2)
    >>> print(teka.convert.replace_attention(model, grid=teka.Grid((3, 4))))
    2 layers attend by squared_relu × rotary now; 137,504 parameters kept, 32 new.
      layers.0.self_attn: was torch.nn.MultiheadAttention
      layers.1.self_attn: was torch.nn.MultiheadAttention

    Args:
        model: The model.
        grid: The grid that its tokens are on, after the prefix. By default that of timm's and transformers' image
            models, and tokens in a row elsewhere; `teka.on` around a call comes first.
        num_prefix_tokens: Number of first tokens without a position; timm's and transformers' image models say it.
        options: Keywords of `AttentionOptions`, as `AttentionHeads` takes them.

    Raises:
        ValueError: A model without such attention, or options that do not fit; it is as it was then.
    """
    check_module("model", model)
    if grid is not None:
        check_class("grid", grid, Grid)
    found = {name: layer for name, module in model.named_modules() if (layer := _look_at(model, name, module))}
    able = {name: layer for name, layer in found.items() if layer.attend_by is not None}
    if not able:
        known = "; ".join(dict.fromkeys([KNOWN, *(layer.reason for layer in found.values())]))
        raise wrong_value("model", type(model).__name__, f"a model with attention that can be replaced: {known}")
    # Those of transformers find their grid at every call.
    sides = getattr(getattr(model, "patch_embed", None), "grid_size", None)
    if grid is None and sides is not None:
        grid, num_prefix_tokens = Grid(tuple(sides)), getattr(model, "num_prefix_tokens", 0)
    like = next(model.parameters())
    num_kept = sum(one.numel() for one in model.parameters())
    made = {
        name: AttentionHeads(
            *(one.dim_head, one.num_heads),
            grid=grid,
            num_prefix_tokens=num_prefix_tokens,
            **{"num_axes": one.num_axes if grid is None else grid.num_axes, **options},
        )
        for name, one in able.items()
    }
    new: dict[nn.Module, nn.Module] = {}
    for name, heads in made.items():
        attend_by, old = able[name].attend_by, model.get_submodule(name)
        assert attend_by is not None
        heads.to(like.device, like.dtype if like.is_floating_point() else None)
        new[old] = attend_by(heads).train(old.training)
    for name, old in list(model.named_modules(remove_duplicate=False)):  # one layer may stand at several places
        if name and old in new:
            model.set_submodule(name, new[old])
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False  # of which torch's own attention alone makes something
    kernels = pair_name(*next(iter(made.values())).present())
    num_new = sum(one.numel() for heads in made.values() for one in heads.parameters())
    reasons = {name: layer.reason for name, layer in found.items() if layer.attend_by is None}
    return ReplacementReport(kernels, {name: layer.was for name, layer in able.items()}, reasons, num_kept, num_new)


def _look_at(model: nn.Module, name: str, module: nn.Module) -> Found | None:
    """What a module is, if it is attention of a kind that is known."""
    kind, place = type(module), type(module).__module__
    if isinstance(module, nn.MultiheadAttention) and not isinstance(module, MultiheadAttention):
        return _torch_attention(model, name, module)
    if kind.__name__ == "Attention" and place in TIMM_ATTENTION:
        timms: Any = module
        heads, width = timms.num_heads, timms.qkv.out_features // 3
        return Found(f"{place}.Attention", width // heads, heads, lambda new: PackedAttention(module, new))
    if place.startswith("transformers.models.") and "attention_interface" in inspect.getsource(kind.forward):
        return _transformers_attention(model, name, module)
    return None


def _asks_others(model: nn.Module, name: str, module: nn.Module) -> bool:
    """Whether attention is to other tokens than its own, or of a learned query, between which there are no offsets."""
    holder = type(model.get_submodule(name.rpartition(".")[0]))
    of_decoder = issubclass(holder, nn.TransformerDecoderLayer) and name.endswith("multihead_attn")
    of_pooling = "Pooling" in holder.__name__
    is_cross = getattr(module, "is_cross_attention", False) or "Cross" in type(module).__name__
    return of_decoder or of_pooling or is_cross or not CROSS.isdisjoint(name.split("."))


def _torch_attention(model: nn.Module, name: str, module: nn.MultiheadAttention) -> Found:
    was = "torch.nn.MultiheadAttention"
    if _asks_others(model, name, module):
        return Found(was, reason=OTHER_TOKENS)
    if module.bias_k is not None or module.add_zero_attn:
        return Found(was, reason="it has add_bias_kv or add_zero_attn")
    if not name:
        return Found(was, reason="it is the model itself; teka.nn.MultiheadAttention takes its parameters")

    def attend_by(heads: AttentionHeads) -> nn.Module:
        sizes = {"kdim": module.kdim, "vdim": module.vdim, "batch_first": module.batch_first}
        packed = (module.embed_dim, module.num_heads, module.dropout, module.in_proj_bias is not None)
        new = MultiheadAttention(*packed, **sizes, device="meta")
        for own, parameter in module.named_parameters():
            new.get_submodule(own.rpartition(".")[0]).register_parameter(own.rpartition(".")[2], parameter)
        new.heads = heads
        return new

    return Found(was, module.head_dim, module.num_heads, attend_by)


def _transformers_attention(model: nn.Module, name: str, module: nn.Module) -> Found:
    from teka.integrations.transformers.attention import OWN, OWN_HEADS, patch_grid, register_attention

    was = f"{type(module).__module__}.{type(module).__name__}"
    if _asks_others(model, name, module):
        return Found(was, reason=OTHER_TOKENS)
    config = getattr(module, "config", None) or getattr(model, "config", None)
    places, counts = (module, config), ("num_attention_heads", "num_heads", "n_heads")
    heads = next(size for place in places for one in counts if (size := getattr(place, one, None)))
    dims = (getattr(module, one, None) for one in ("attention_head_size", "head_dim"))
    dim_head = next((size for size in dims if size), None) or getattr(config, "hidden_size", 0) // heads

    def attend_by(new: AttentionHeads) -> nn.Module:
        register_attention()
        model.set_attn_implementation(OWN)  # pyright: ignore[reportCallIssue]
        setattr(module, OWN_HEADS, new)
        return module

    patches = patch_grid(config)
    return Found(was, dim_head, heads, attend_by, num_axes=1 if patches is None else patches.num_axes)


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
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key = (one if norm is None else norm(one) for norm, one in ((self.q_norm, query), (self.k_norm, key)))
        attended = self.heads(query, key, value, is_causal=is_causal or is_causal_mask(attn_mask))
        joined = attended.transpose(1, 2).flatten(2)
        joined = joined if self.norm is None else self.norm(joined)
        joined = joined if self.gate is None else joined * self.gate(x).sigmoid()
        return self.proj_drop(self.proj(joined))
