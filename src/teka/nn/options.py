"""Options that attention layers have in common."""

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any

from teka._compat import replace
from teka.checks import check_flags, check_instance, check_name, check_sizes, is_number
from teka.errors import wrong_value
from teka.functional import BACKENDS, PROJECTIONS
from teka.nn.features import AnyContentKernel
from teka.nn.qk_norm import QUERY_KEYS
from teka.nn.relative import RelativeModule

VALUES = ("projected", "tokens")


@dataclass(frozen=True, kw_only=True)
class AttentionOptions:
    """Options of an attention layer, as an object that several layers can share.

    `teka.nn.Attention` describes each option. Every layer with attention accepts an instance of
    this class, the same options as keyword arguments, or both.

    >>> import torch, teka
    >>> options = teka.nn.AttentionOptions(kernel="softmax", relative="alibi")
    >>> layer = teka.nn.Attention(16, 2, options, query_key="normalized")
    >>> layer(torch.randn(1, 12, 16), (3, 4)).shape
    torch.Size([1, 12, 16])

    Raises:
        ValueError: A value is out of range, or two options contradict each other.
    """

    dim_head: int | None = None
    kernel: str | AnyContentKernel = "squared_relu"
    relative: str | RelativeModule | None = "rotary"
    num_features: int | None = None
    projection: str | None = None
    causal: bool = False
    context_dim: int | None = None
    qkv_bias: bool = True
    dropout: float = 0.0
    backend: str = "auto"
    num_axes: int | None = None
    position_heads: int | None = None
    num_waves: int | None = None
    rotary_normalizer: str | None = None
    query_key: str = "plain"
    gate: bool = False
    value_convolution: int | None = None
    values: str = "projected"

    def __post_init__(self) -> None:
        optional = ("dim_head", "context_dim", "num_features", "num_waves", "num_axes")
        check_sizes({name: getattr(self, name) for name in optional}, or_none=True)
        check_sizes({"position_heads": self.position_heads}, 0, or_none=True)
        if self.projection is not None:
            check_name("projection", self.projection, PROJECTIONS)
        check_flags({name: getattr(self, name) for name in ("causal", "qkv_bias", "gate")})
        check_name("backend", self.backend, BACKENDS)
        check_name("values", self.values, VALUES)
        check_name("query_key", self.query_key, QUERY_KEYS)
        if not (is_number(self.dropout) and 0 <= self.dropout < 1):
            raise wrong_value("dropout", self.dropout, "a probability of at least 0 and below 1")
        if self.value_convolution is not None and self.causal:
            hint = "The convolution sees later tokens."
            raise wrong_value(
                "value_convolution", self.value_convolution, "None with causal=True", hint
            )
        if self.query_key == "centred" and self.causal:
            hint = "The mean of the keys depends on later keys."
            raise wrong_value(
                "query_key", self.query_key, "'plain' or 'normalized' with causal=True", hint
            )


ALL_OPTIONS = tuple(field.name for field in fields(AttentionOptions))
# Options of layers whose queries, keys and values another layer projects.
KERNEL_OPTIONS = (
    "kernel",
    "relative",
    "num_features",
    "projection",
    "backend",
    "num_axes",
    "num_waves",
    "rotary_normalizer",
)


def merge_options(
    layer: str,
    options: AttentionOptions | None,
    keywords: dict[str, Any],
    allowed: Collection[str] = ALL_OPTIONS,
) -> AttentionOptions:
    """Combine options that are passed to a layer as an object and as keyword arguments.

    Keyword arguments take precedence.

    Args:
        layer: Name of the layer's class, for the error message.
        options: Options as an object, or None for the defaults.
        keywords: Options as keyword arguments.
        allowed: Names of the options that the layer has.

    Raises:
        TypeError: A keyword is not the name of an option of the layer.
        ValueError: A value is out of range, or `options` sets an option that the layer does not
            have.
    """
    for name in keywords:
        if name not in allowed:
            raise TypeError(
                f"{layer}() got an unexpected keyword argument {name!r}. "
                f"Its options are {', '.join(allowed)}."
            )
    if options is None:
        return AttentionOptions(**keywords)
    check_instance("options", options, AttentionOptions)
    for field in fields(AttentionOptions):
        value = getattr(options, field.name)
        if field.name not in allowed and value != field.default:
            raise wrong_value(
                f"options.{field.name}", value, f"{field.default!r}, the default, for {layer}"
            )
    return replace(options, **keywords)


def backend_without_relative_kernel(backend: str) -> str:
    """Return the backend option for those heads of a layer that have no relative kernel.

    Only "dense" and "linear" can compute such heads. Any other option becomes "auto".
    """
    return backend if backend in ("dense", "linear") else "auto"
