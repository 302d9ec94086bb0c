"""The layers that the benchmark times."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from teka.experiments.bench.four_gemms import FourGemms
from teka.experiments.bench.peers import FusedSoftmax, PerformerPytorch
from teka.grid import Grid
from teka.nn import Attention

YARDSTICK = "four_gemms"
SDPA = "scaled_dot_product_attention"


@dataclass(frozen=True)
class Layer:
    """A layer and how it is computed.

    Args:
        name: Content kernel and relative kernel, "kernel-relative", or the name of a layer that is not teka's.
        backend: teka's backend, or the library that computes it.
        make: From (dim, heads) to a module that is called with tokens and their grid.
        num_axes: Axes of the grid that it is given: 2, a square; 1, a sequence of the same length.
    """

    name: str
    backend: str
    make: Callable[[int, int], nn.Module]
    num_axes: int = 2

    def grid(self, num_tokens: int) -> Grid:
        """The grid of this many tokens, a square number."""
        return Grid((math.isqrt(num_tokens),) * 2) if self.num_axes == 2 else Grid(num_tokens)


def _attention(kernel: str, relative: str | None, backend: str) -> Layer:
    def make(dim: int, heads: int) -> Attention:
        return Attention(dim, heads, kernel=kernel, relative=relative, backend=backend)

    return Layer(kernel if relative is None else f"{kernel}-{relative}", backend, make)


def _causal(kernel: str, backend: str) -> Layer:
    def make(dim: int, heads: int) -> Attention:
        return Attention(dim, heads, kernel=kernel, relative=None, causal=True, backend=backend, num_axes=1)

    return Layer(f"{kernel}-causal", backend, make, num_axes=1)


LAYERS: tuple[Layer, ...] = (
    Layer(YARDSTICK, "torch", FourGemms),
    _attention("squared_relu", None, "linear"),
    _causal("squared_relu", "linear"),
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
