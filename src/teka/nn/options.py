"""The options of an attention layer, declared, documented and checked once, and passed on whole."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypedDict, TypeVar, get_type_hints

from teka.checks import check_flags, check_name, check_sizes, is_number
from teka.errors import wrong_value
from teka.functional import BACKENDS, PROJECTIONS
from teka.nn.features import ContentKernel
from teka.nn.qk_norm import QUERY_KEYS
from teka.nn.relative import RelativeModule

VALUES = ("projected", "tokens")
F = TypeVar("F", bound=Callable[..., None])


class KernelKeywords(TypedDict, total=False):
    """The keywords of `AttentionOptions` that say by which kernels heads attend, but for the relative one."""

    kernel: str | ContentKernel
    num_features: int | None
    projection: str | None
    backend: str
    num_waves: int | None
    rotary_normalizer: str | None


class PlacedKeywords(KernelKeywords, total=False):
    """Those of the relative kernel too: all that `AttentionHeads` takes."""

    relative: str | RelativeModule | None
    num_axes: int


class HeadKeywords(KernelKeywords, total=False):
    """Those that a model passes on to the attention of its blocks."""

    dim_head: int | None
    qkv_bias: bool
    dropout: float
    position_heads: int | None
    query_key: str
    gate: bool
    value_convolution: int | None


class BlockKeywords(HeadKeywords, PlacedKeywords, total=False):
    """Those that a block passes on to its attention."""

    causal: bool


class AttentionKeywords(BlockKeywords, total=False):
    """All of them."""

    context_dim: int | None
    values: str


@dataclass(frozen=True, kw_only=True)
class AttentionOptions:
    """How an attention layer attends; `Attention` takes these as keywords, and blocks and models hand them on.

    >>> import torch, teka
    >>> options = teka.nn.AttentionOptions(kernel="softmax", relative="alibi", query_key="normalized")
    >>> down = teka.nn.AttentionDownsample(4, 8, 2, sampling=teka.nn.PolyphaseDownsample(2), options=options)
    >>> down(torch.randn(1, 4, 6, 6))[0].shape
    torch.Size([1, 8, 3, 3])

    Args:
        dim_head: Size of a head, dim / heads by default.
        kernel: Content kernel, a name of `teka.functional.KERNELS`, an instance, `RandomFeatures` or `LearnedFeatures`.
        relative: Relative kernel, a name of `teka.functional.RELATIVES`, a `teka.nn.RelativeKernel`, or None.
        num_features: Number of random features m, ⌊d ln d⌋ by default; only for kernels that have them.
        projection: How random features are drawn: "orthogonal" (the default), "independent" or "fixed_norm"; likewise.
        causal: Whether no token sees a later one, by their order.
        context_dim: Size of the tokens that are attended to where they are others (`context`), dim by default.
        qkv_bias: Whether queries, keys and values have a bias.
        dropout: Probability of dropping a number of the output in training.
        backend: "auto", "dense", "linear", "toeplitz", "rings", "fft" or "windows".
        num_axes: Number of axes of the grids to come, for relative kernels given by name and a value convolution.
        position_heads: Number of last heads that attend by position alone, while the others attend by content alone;
            with 0 both kernels act in every head. By default half of those of `clipped` and `clipped_features`, 0 of
            others'.
        num_waves: Number of waves F of relative="fourier".
        rotary_normalizer: What the denominator of relative="rotary" is made of, "mixed" by default; see
            `teka.functional.Rotary` for the others and their bounds. Not for the softmax kernel, which has its own.
        query_key: Queries and keys "plain", "normalized" (RMS, with a learned gain) or "centred" (keys less the mean).
        gate: Whether the heads' output is multiplied by a sigmoid of a linear map of the token; see `Gate`.
        value_convolution: Side in cells of a convolution of values that is added (see `ValueConvolution`), or None.
        values: What the heads take means of: "projected" (a linear map of the tokens for each head) or "tokens" (the
            tokens themselves, whole, in every head, so that the output map has a matrix of context_dim × dim a head; a
            map of the values before it would be merged into it: Cordonnier et al. 2020, eq. 11).
    """

    dim_head: int | None = None
    kernel: str | ContentKernel = "squared_relu"
    relative: str | RelativeModule | None = "rotary"
    num_features: int | None = None
    projection: str | None = None
    causal: bool = False
    context_dim: int | None = None
    qkv_bias: bool = True
    dropout: float = 0.0
    backend: str = "auto"
    num_axes: int = 2
    position_heads: int | None = None
    num_waves: int | None = None
    rotary_normalizer: str | None = None
    query_key: str = "plain"
    gate: bool = False
    value_convolution: int | None = None
    values: str = "projected"

    def __post_init__(self) -> None:
        check_sizes({"num_axes": self.num_axes})
        optional = ("dim_head", "context_dim", "num_features", "num_waves")
        check_sizes({name: getattr(self, name) for name in optional}, or_none=True)
        check_sizes({"position_heads": self.position_heads}, 0, or_none=True)
        if self.projection is not None:
            check_name("projection", self.projection, PROJECTIONS)
        check_flags({name: getattr(self, name) for name in ("causal", "qkv_bias", "gate")})
        for name, known in (("backend", BACKENDS), ("values", VALUES), ("query_key", QUERY_KEYS)):
            check_name(name, getattr(self, name), known)
        if not (is_number(self.dropout) and 0 <= self.dropout < 1):
            raise wrong_value("dropout", self.dropout, "a probability of at least 0 and below 1")
        if self.value_convolution is not None and self.causal:
            expected = "None with causal=True; it sees later tokens"
            raise wrong_value("value_convolution", self.value_convolution, expected)
        if self.query_key == "centred" and self.causal:
            expected = "'plain' or 'normalized' with causal=True; a mean sees later keys"
            raise wrong_value("query_key", self.query_key, expected)


def without_relative(backend: str) -> str:
    """The backend to ask for in heads without a relative kernel: what computes one may not compute the others."""
    return backend if backend in ("dense", "linear") else "auto"


def takes(keywords: Any) -> Callable[[F], F]:
    """Declare that the `**` of a constructor are these keywords, which then stand in its signature."""
    defaults = {one.name: one.default for one in fields(AttentionOptions)}
    more = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=annotation
        )
        for name, annotation in get_type_hints(keywords).items()
    ]

    def decorate(construct: F) -> F:
        own = inspect.signature(construct)
        *before, _ = own.parameters.values()
        signature = own.replace(parameters=[*before, *more])

        @functools.wraps(construct)
        def checked(self: object, *given: object, **options: object) -> None:
            for name in options:
                if name not in signature.parameters:
                    known = ", ".join([*signature.parameters][1:])
                    raise TypeError(
                        f"{type(self).__name__}() got an unknown keyword {name!r}; it takes {known}"
                    )
            construct(self, *given, **options)

        checked.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
        return checked  # pyright: ignore[reportReturnType]

    return decorate
