"""What the benchmark times: layers, other libraries' among them, one pass of a layer, and its sizes and limits.

Four bare matrix products are the baseline that every other layer is compared with.
"""

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from teka.checks import PRECISIONS, check_name, check_sizes, is_integer
from teka.errors import require, wrong_value
from teka.functional import Rotary
from teka.grid import Grid
from teka.nn import Attention

Tokens = Float[Tensor, "batch tokens dim"]
BASELINE = "four_gemms"
SDPA = "scaled_dot_product_attention"
MULTIHEAD = "multihead_attention"
PEER = "performer_pytorch"
FLASH, FLASH_TWO_SIDED = "flash_linear_attention", "flash_bidirectional_linear_attention"
FORWARD_BACKWARD = "forward_backward"
DIRECTIONS = (FORWARD_BACKWARD, "forward")
FULL = PRECISIONS[0]
DEVICES = ("cpu", "cuda")
MOST_THREADS = 1024


class FourGemms(nn.Module):
    """Four linear maps of dim × dim, one after the other: the work of the query, key, value and output projections.

    They are chained, so that nothing but matrix products (with their biases) is run: no layer with these projections
    is faster. (Heads that attend by position alone have no keys, so that `clipped` has 3½ projections, and no queries
    if position does not look at them, so that `constant` has 2.)
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(dim, dim) for _ in range(4))

    @property
    def projections(self) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
        """Those of queries, keys and values."""
        return self.query, self.key, self.value

    def forward(self, tokens: Tokens, grid: Grid) -> Tokens:
        return self.output(self.value(self.key(self.query(tokens))))


class FusedSoftmax(FourGemms):
    """`torch.nn.functional.scaled_dot_product_attention` between the same four projections."""

    def forward(self, tokens: Tokens, grid: Grid) -> Tokens:
        query, key, value = (
            projection(tokens).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projection in self.projections
        )
        return self.output(
            scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        )


class Multihead(nn.Module):
    """`torch.nn.MultiheadAttention`, which has projections of its own."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, tokens: Tokens, grid: Grid) -> Tokens:
        return self.attention(tokens, tokens, tokens, need_weights=False)[0]


class PerformerPytorch(nn.Module):
    """`performer_pytorch.SelfAttention`, not causal, with its own number of random features."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        with warnings.catch_warnings():
            # It compares torch's version by way of distutils while it is imported.
            warnings.filterwarnings(
                "ignore", "distutils Version classes are deprecated", DeprecationWarning
            )
            peer = require(
                "performer_pytorch",
                f"the layer {PEER!r} needs",
                "teka[bench], or leave that layer out",
            )
        self.attention = peer.SelfAttention(dim, heads=heads, causal=False, dim_head=dim // heads)

    def forward(self, tokens: Tokens, grid: Grid) -> Tokens:
        return self.attention(tokens)


class FlashLinear(FourGemms):
    """Causal `fla.ops.linear_attn.chunk_linear_attn` of squared relus between the four projections, on a GPU."""

    def forward(self, tokens: Tokens, grid: Grid) -> Tokens:
        operators = require(
            "fla.ops.linear_attn", f"the layer {FLASH!r} needs", "flash-linear-attention"
        )
        query, key, value = (
            linear(tokens).unflatten(-1, (self.heads, -1)) for linear in self.projections
        )
        mixed, _ = operators.chunk_linear_attn(query.relu().square(), key.relu().square(), value)
        return self.output(mixed.flatten(2))


class FlashBidirectional(FourGemms):
    """Two-sided `flash_bla.ops.linear_attn.decoupled.decoupled_la` of squared relus and rotated copies, on a GPU."""

    frequencies: Tensor

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__(dim, heads)
        frequencies = torch.randn(
            heads, dim // heads // 2, 2, generator=torch.Generator().manual_seed(0)
        )
        self.register_buffer("frequencies", frequencies)

    def forward(self, tokens: Tokens, grid: Grid) -> Tokens:
        name = "flash_bla.ops.linear_attn.decoupled"
        operators = require(
            name, f"the layer {FLASH_TWO_SIDED!r} needs", "flash-bidirectional-linear-attention"
        )
        heads = (
            linear(tokens).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for linear in self.projections
        )
        query, key, value = heads
        query, key = query.relu().square(), key.relu().square()
        rotary, places = Rotary(self.frequencies), grid.positions(device=tokens.device)
        rotated = (rotary.rotate(one, places) for one in (query, key))
        mixed = operators.decoupled_la(query, key, *rotated, value)
        return self.output(mixed.transpose(1, 2).flatten(2))


@dataclass(frozen=True)
class Layer:
    """A layer, "kernel-relative" if teka's, what computes it, how it is made of (dim, heads), and its grid's axes.

    One that runs on a GPU alone names the package that it needs, and is known where both are.
    """

    name: str
    backend: str
    make: Callable[[int, int], nn.Module]
    num_axes: int = 2
    gpu_package: str | None = None

    @property
    def is_known(self) -> bool:
        """Whether it runs here, if it needs a GPU."""
        return self.gpu_package is None or (
            torch.cuda.is_available() and find_spec(self.gpu_package) is not None
        )

    def grid(self, num_tokens: int) -> Grid:
        """The grid of this many tokens, a square number."""
        return Grid((math.isqrt(num_tokens),) * 2) if self.num_axes == 2 else Grid(num_tokens)


def _attention(kernel: str, relative: str | None, backend: str, *, causal: bool = False) -> Layer:
    num_axes = 1 if causal else 2
    options: dict[str, Any] = {
        "kernel": kernel,
        "relative": relative,
        "causal": causal,
        "backend": backend,
    }
    name = "-".join(part for part in (kernel, relative, "causal" if causal else None) if part)
    return Layer(
        name, backend, functools.partial(Attention, **options, num_axes=num_axes), num_axes
    )


ALL_LAYERS: tuple[Layer, ...] = (
    Layer(BASELINE, "torch", FourGemms),
    _attention("squared_relu", None, "linear"),
    _attention("squared_relu", None, "linear", causal=True),
    _attention("squared_relu", "rotary", "linear", causal=True),
    _attention("squared_relu", "clipped", "rings"),
    _attention("squared_relu", "fourier", "linear"),
    _attention("squared_relu", "rotary", "linear"),
    _attention("squared_relu", "rotation", "toeplitz"),
    _attention("squared_relu", "rotation", "dense"),
    _attention("constant", "quadratic", "toeplitz"),  # heads that attend by position alone
    _attention("constant", "generalized_quadratic", "fft"),
    _attention("softmax", None, "dense"),
    _attention("softmax", "rotation", "dense"),
    _attention("positive", None, "linear"),
    _attention("taylor2", None, "linear"),
    _attention("positive", "rotation_joint", "linear"),  # strategy 1 in the paper's form
    _attention("positive", "clipped_features", "rings"),  # strategy 2 in the paper's form
    Layer(SDPA, "torch", FusedSoftmax),
    Layer(MULTIHEAD, "torch", Multihead),
    Layer(PEER, PEER, PerformerPytorch),
    Layer(FLASH, "fla", FlashLinear, 1, gpu_package="fla"),
    Layer(FLASH_TWO_SIDED, "flash_bla", FlashBidirectional, gpu_package="flash_bla"),
)
LAYERS = tuple(layer for layer in ALL_LAYERS if layer.is_known)


def layer_names() -> tuple[str, ...]:
    """The names that `bench` knows, each once; a name with two backends stands for both."""
    return tuple(dict.fromkeys(layer.name for layer in LAYERS))


@dataclass(frozen=True)
class Step:
    """A layer and its input; calling it computes the output and the gradients for the tokens and all parameters.

    The output's gradient are the tokens' own numbers, so that no loss is timed. With direction "forward" it is the
    output alone, of which nothing is kept for gradients. With another precision than "float32" the output is computed
    under autocast, and the gradients outside of it, as in training; tokens and parameters are in float32 all the same.
    """

    module: nn.Module
    tokens: Tokens
    grid: Grid
    direction: str = FORWARD_BACKWARD
    precision: str = FULL

    def __call__(self) -> None:
        """One pass."""
        if self.direction == FORWARD_BACKWARD:
            output = self.output(self.tokens)
            output.backward(self.tokens.detach().to(output.dtype))
        else:
            with torch.no_grad():
                self.output(self.tokens.detach())

    def output(self, tokens: Tokens) -> Tokens:
        """The layer's output for some tokens."""
        device, dtype = tokens.device.type, getattr(torch, self.precision)
        with nullcontext() if self.precision == FULL else torch.autocast(device, dtype):
            return self.module(tokens, self.grid)

    def clear(self) -> None:
        """Free the gradients, so that the next pass does not add to them."""
        self.tokens.grad = None
        self.module.zero_grad(set_to_none=True)


@dataclass(frozen=True)
class Settings:
    """What a benchmark was asked to do, in the terms of `bench`."""

    lengths: Sequence[int]
    direction: str
    precision: str
    dim: int
    heads: int
    batch: int
    repeats: int
    warmup: int
    threads: int
    layers: Sequence[str] | None
    device: str
    max_bytes: float
    max_seconds: float
    budget_seconds: float
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", _checked_lengths(self.lengths))
        check_name("direction", self.direction, DIRECTIONS)
        check_name("precision", self.precision, PRECISIONS)
        check_sizes({"dim": self.dim, "batch": self.batch, "repeats": self.repeats})
        check_sizes({"heads": self.heads}, least=2)
        check_sizes({"warmup": self.warmup}, least=0)
        check_sizes({"threads": self.threads}, most=MOST_THREADS)
        if self.dim % self.heads:
            raise wrong_value("heads", self.heads, f"a divisor of dim = {self.dim}")
        for argument, unit in (
            ("max_bytes", "bytes"),
            ("max_seconds", "seconds"),
            ("budget_seconds", "seconds"),
        ):
            if not getattr(self, argument) > 0:
                raise wrong_value(argument, getattr(self, argument), f"a positive number of {unit}")
        check_name("device", self.device, DEVICES)
        if self.device == "cuda" and not torch.cuda.is_available():
            raise wrong_value("device", self.device, "'cpu'; torch finds no GPU here")
        known = layer_names()
        if isinstance(self.layers, str) or (self.layers is not None and not self.layers):
            raise wrong_value(
                "layers",
                self.layers,
                f"None or a list of names out of {', '.join(map(repr, known))}",
            )
        for name in self.layers or ():
            check_name("layers", name, known)
        names = known if self.layers is None else tuple(dict.fromkeys((BASELINE, *self.layers)))
        object.__setattr__(self, "layers", names)

    def chosen_layers(self) -> tuple[Layer, ...]:
        """The layers to time, in a fixed order; the baseline is always one of them."""
        here = (layer for layer in LAYERS if layer.gpu_package is None or self.device == "cuda")
        return tuple(layer for layer in here if layer.name in (self.layers or ()))


def _checked_lengths(lengths: object) -> tuple[int, ...]:
    """The lengths in ascending order."""
    given = tuple(lengths) if isinstance(lengths, Sequence) else ()
    if (
        not given
        or any(not is_integer(length) or length < 1 for length in given)
        or len(set(given)) < len(given)
    ):
        raise wrong_value(
            "lengths",
            lengths,
            "one or more different numbers of tokens, each a whole number from 1 on",
        )
    for length in given:
        side = math.isqrt(length)
        if side**2 != length:
            nearest = f"{side**2} or {(side + 1) ** 2}"
            raise wrong_value(
                "lengths",
                length,
                f"the cells of a square grid: {nearest}, not a number between squares",
            )
    return tuple(sorted(given))
