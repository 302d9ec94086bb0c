"""Content kernels κ(q, k) by name, each one small class."""

from torch import Generator

from teka.errors import unknown_name, wrong_value
from teka.functional.kernels.base import Kernel
from teka.functional.kernels.features import Constant, Elu, Hedgehog, Softmax, Taylor2
from teka.functional.kernels.projection import default_num_features, draw_projection
from teka.functional.kernels.random import (
    Hyperbolic,
    Optimal,
    Positive,
    RandomKernel,
    Trigonometric,
)
from teka.functional.kernels.rectified import FlooredRelu, Focused, Relu, SquaredRelu
from teka.functional.kernels.similarity import Concatenation, DotProduct, Gaussian

_WITH_FEATURES = (SquaredRelu, Focused, Relu, Elu, Taylor2, Constant)
# Each is made without arguments.
DETERMINISTIC_KERNELS: dict[str, type[Kernel]] = {
    kernel.name: kernel
    for kernel in (Softmax, *_WITH_FEATURES, Gaussian, DotProduct, Concatenation)
}
# Each is made from its projection.
RANDOM_KERNELS: dict[str, type[RandomKernel]] = {
    kernel.name: kernel for kernel in (Positive, Hyperbolic, Optimal, Trigonometric)
}
# Each is made from parameters, at first those of its `identity`.
LEARNED_KERNELS: dict[str, type[Hedgehog]] = {kernel.name: kernel for kernel in (Hedgehog,)}
KERNELS = (*DETERMINISTIC_KERNELS, *RANDOM_KERNELS, *LEARNED_KERNELS)


def make_kernel(kernel: str | Kernel, dim: int) -> Kernel:
    """The kernel, or the one of that name: drawn with seed 0, with maps yet to learn, or as it is."""
    if isinstance(kernel, Kernel):
        return kernel
    if not isinstance(kernel, str):
        raise wrong_value(
            "kernel", kernel, "a name or an instance of teka.functional.kernels.Kernel"
        )
    if kernel in DETERMINISTIC_KERNELS:
        return DETERMINISTIC_KERNELS[kernel]()
    if kernel in RANDOM_KERNELS:
        generator = Generator().manual_seed(0)
        return RANDOM_KERNELS[kernel](
            draw_projection(default_num_features(dim), dim, generator=generator)
        )
    if kernel in LEARNED_KERNELS:
        return LEARNED_KERNELS[kernel].identity(dim)
    raise unknown_name("kernel", kernel, KERNELS)


def with_floor(kernel: str | Kernel, epsilon: float) -> FlooredRelu:
    """The rectified kernel of that name with a floor ε > 0, a share of the root mean square of a vector's entries."""
    floored = {
        name: kind for name, kind in DETERMINISTIC_KERNELS.items() if issubclass(kind, FlooredRelu)
    }
    if not isinstance(kernel, str) or kernel not in floored:
        takes = " or ".join(map(repr, floored))
        raise wrong_value(
            "epsilon", epsilon, f"None with kernel={kernel!r}; kernel={takes} takes it"
        )
    return floored[kernel](epsilon=epsilon)
