"""What the benchmark times: layers, other libraries' among them, one pass of a layer, and its sizes and limits.

Four bare matrix products are the baseline that every other layer is compared with.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from teka.checks import LARGEST
from teka.errors import unknown_name, wrong_value
from teka.grid import Grid
from teka.nn import Attention

BASELINE = "four_gemms"
SDPA = "scaled_dot_product_attention"
FORWARD_BACKWARD = "forward_backward"
DIRECTIONS = (FORWARD_BACKWARD, "forward")
DEVICES = ("cpu", "cuda")
MOST_THREADS = 1024


class FourGemms(nn.Module):
    """Four linear maps of dim × dim, one after the other: the work of the query, key, value and output projections.

    They are chained, so that nothing but matrix products (with their biases) is run. A layer with these projections
    cannot be faster, whatever it does between them. (Heads that attend by position alone have no keys, so that
    `clipped` has 3½ projections, and no queries if position does not look at them, so that `constant` has 2.) The heads
    are not used.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, tokens: Float[Tensor, "batch tokens dim"], grid: Grid) -> Float[Tensor, "batch tokens dim"]:
        """The product with the four matrices."""
        return self.output(self.value(self.key(self.query(tokens))))


class FusedSoftmax(FourGemms):
    """`torch.nn.functional.scaled_dot_product_attention` between the same four projections."""

    def forward(self, tokens: Float[Tensor, "batch tokens dim"], grid: Grid) -> Float[Tensor, "batch tokens dim"]:
        """Attend, without position."""
        query, key, value = (
            projection(tokens).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        return self.output(scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))


class PerformerPytorch(nn.Module):
    """`performer_pytorch.SelfAttention`, not causal, with its own number of random features."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        try:
            with warnings.catch_warnings():
                # It compares torch's version by way of distutils while it is imported.
                warnings.filterwarnings("ignore", "distutils Version classes are deprecated", DeprecationWarning)
                from performer_pytorch import SelfAttention
        except ImportError as error:
            raise ImportError(
                "the layer 'performer_pytorch' needs performer-pytorch, which is not installed: "
                "pip install teka[bench], or leave that layer out"
            ) from error
        self.attention = SelfAttention(dim, heads=heads, causal=False, dim_head=dim // heads)

    def forward(self, tokens: Float[Tensor, "batch tokens dim"], grid: Grid) -> Float[Tensor, "batch tokens dim"]:
        """Attend, without position."""
        return self.attention(tokens)


@dataclass(frozen=True)
class Layer:
    """A layer, "kernel-relative" if it is teka's, the backend or library that computes it, and how it is made.

    From (dim, heads) it makes a module that is called with tokens and their grid, of so many axes: 2, a square; 1, a
    sequence of the same length.
    """

    name: str
    backend: str
    make: Callable[[int, int], nn.Module]
    num_axes: int = 2

    def grid(self, num_tokens: int) -> Grid:
        """The grid of this many tokens, a square number."""
        return Grid((math.isqrt(num_tokens),) * 2) if self.num_axes == 2 else Grid(num_tokens)


def _attention(kernel: str, relative: str | None, backend: str, *, causal: bool = False) -> Layer:
    num_axes = 1 if causal else 2

    def make(dim: int, heads: int) -> Attention:
        return Attention(
            dim, heads, kernel=kernel, relative=relative, causal=causal, backend=backend, num_axes=num_axes
        )

    name = "-".join(part for part in (kernel, "causal" if causal else relative) if part)
    return Layer(name, backend, make, num_axes)


LAYERS: tuple[Layer, ...] = (
    Layer(BASELINE, "torch", FourGemms),
    _attention("squared_relu", None, "linear"),
    _attention("squared_relu", None, "linear", causal=True),
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
    Layer("performer_pytorch", "performer_pytorch", PerformerPytorch),
)


def layer_names() -> tuple[str, ...]:
    """The names that `bench` knows, each once; a name with two backends stands for both."""
    return tuple(dict.fromkeys(layer.name for layer in LAYERS))


@dataclass(frozen=True)
class Step:
    """A layer and its input; calling it computes the output and the gradients for the tokens and all parameters.

    The gradient that arrives at the output is the tokens' own numbers, random as any, so that no loss is timed. The
    tokens require a gradient. With direction "forward" it is the output alone, of which nothing is kept for gradients.
    """

    module: nn.Module
    tokens: Float[Tensor, "batch tokens dim"]
    grid: Grid
    direction: str = FORWARD_BACKWARD

    def __call__(self) -> None:
        """One pass."""
        self.run(self.module, self.tokens)

    def run(self, layer: Callable[[Tensor, Grid], Tensor], tokens: Float[Tensor, "batch tokens dim"]) -> None:
        """One pass of this step with a stand-in for the layer and the tokens."""
        if self.direction == FORWARD_BACKWARD:
            layer(tokens, self.grid).backward(tokens.detach())
        else:
            with torch.no_grad():
                layer(tokens.detach(), self.grid)

    def clear(self) -> None:
        """Free the gradients, so that the next pass does not add to them."""
        self.tokens.grad = None
        self.module.zero_grad(set_to_none=True)


@dataclass(frozen=True)
class Settings:
    """What a benchmark was asked to do, in the terms of `bench`."""

    lengths: Sequence[int]
    direction: str
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
        if self.direction not in DIRECTIONS:
            raise unknown_name("direction", self.direction, DIRECTIONS)
        least = {"dim": 1, "heads": 2, "batch": 1, "repeats": 1, "warmup": 0, "threads": 1}
        for argument, lowest in least.items():
            value = getattr(self, argument)
            if not _is_whole(value) or value < lowest:
                raise wrong_value(argument, value, f"a whole number of at least {lowest}")
        for argument, most in {**dict.fromkeys(least, LARGEST), "threads": MOST_THREADS}.items():
            if getattr(self, argument) > most:
                raise wrong_value(argument, getattr(self, argument), f"at most {most}")
        if self.dim % self.heads:
            raise wrong_value("heads", self.heads, f"a divisor of dim = {self.dim}")
        for argument, unit in (("max_bytes", "bytes"), ("max_seconds", "seconds"), ("budget_seconds", "seconds")):
            if not getattr(self, argument) > 0:
                raise wrong_value(argument, getattr(self, argument), f"a positive number of {unit}")
        if self.device not in DEVICES:
            raise unknown_name("device", self.device, DEVICES)
        if self.device == "cuda" and not torch.cuda.is_available():
            raise wrong_value("device", self.device, "'cpu': torch finds no GPU here")
        known = layer_names()
        if isinstance(self.layers, str) or (self.layers is not None and not self.layers):
            raise wrong_value("layers", self.layers, f"None or a list of names out of {', '.join(map(repr, known))}")
        for name in self.layers or ():
            if name not in known:
                raise unknown_name("layers", name, known)
        names = known if self.layers is None else tuple(dict.fromkeys((BASELINE, *self.layers)))
        object.__setattr__(self, "layers", names)

    def chosen_layers(self) -> tuple[Layer, ...]:
        """The layers to time, in a fixed order; the baseline is always one of them."""
        return tuple(layer for layer in LAYERS if layer.name in (self.layers or ()))


def _checked_lengths(lengths: object) -> tuple[int, ...]:
    """The lengths in ascending order."""
    given = tuple(lengths) if isinstance(lengths, Sequence) else ()
    if not given or any(not _is_whole(length) or length < 1 for length in given) or len(set(given)) < len(given):
        raise wrong_value("lengths", lengths, "one or more different numbers of tokens, each a whole number from 1 on")
    for length in given:
        side = math.isqrt(length)
        if side**2 != length:
            nearest = f"{side**2} or {(side + 1) ** 2}"
            raise wrong_value("lengths", length, f"the cells of a square grid: {nearest}, not a number between squares")
    return tuple(sorted(given))


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
