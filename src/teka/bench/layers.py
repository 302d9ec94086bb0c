"""The layers that the benchmark times."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from teka.bench.four_gemms import FourGemms
from teka.bench.peers import FusedSoftmax, PerformerPytorch
from teka.nn import Attention

YARDSTICK = "four_gemms"


@dataclass(frozen=True)
class Layer:
    """A layer and how it is computed.

    Args:
        name: Content kernel and relative kernel, "kernel-relative", or the name of a layer that is not teka's.
        backend: teka's backend, or the library that computes it.
        make: From (dim, heads) to a module that is called with tokens and their grid.
    """

    name: str
    backend: str
    make: Callable[[int, int], nn.Module]


def _attention(kernel: str, relative: str | None, backend: str) -> Layer:
    def make(dim: int, heads: int) -> Attention:
        return Attention(dim, heads, kernel=kernel, relative=relative, backend=backend)

    return Layer(kernel if relative is None else f"{kernel}-{relative}", backend, make)


LAYERS: tuple[Layer, ...] = (
    Layer(YARDSTICK, "torch", FourGemms),
    _attention("squared_relu", None, "linear"),
    _attention("squared_relu", "rotation", "toeplitz"),
    _attention("squared_relu", "rotation", "dense"),
    _attention("squared_relu", "clipped", "rings"),
    _attention("softmax", None, "dense"),
    _attention("softmax", "rotation", "dense"),
    _attention("positive", None, "linear"),
    _attention("positive", "rotation_joint", "linear"),  # strategy 1 in the paper's form
    _attention("positive", "clipped_features", "rings"),  # strategy 2 in the paper's form
    Layer("scaled_dot_product_attention", "torch", FusedSoftmax),
    Layer("performer_pytorch", "performer_pytorch", PerformerPytorch),
)


def layer_names() -> tuple[str, ...]:
    """The names that `bench` knows, each once; a name with two backends stands for both."""
    return tuple(dict.fromkeys(layer.name for layer in LAYERS))
