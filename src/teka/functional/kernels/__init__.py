"""Content kernels, which compute attention weights from the similarity of queries and keys.

`KERNELS` lists them by name, such as "softmax" and "relu".
"""

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

# Kernels without required arguments.
DETERMINISTIC_KERNELS: dict[str, type[Kernel]] = {
    kernel.name: kernel
    for kernel in (
        Softmax,
        SquaredRelu,
        Focused,
        Relu,
        Elu,
        Taylor2,
        Constant,
        Gaussian,
        DotProduct,
        Concatenation,
    )
}
# Kernels with a random projection.
RANDOM_KERNELS: dict[str, type[RandomKernel]] = {
    kernel.name: kernel for kernel in (Positive, Hyperbolic, Optimal, Trigonometric)
}
# Kernels with learned parameters, which start from `identity`.
LEARNED_KERNELS: dict[str, type[Hedgehog]] = {Hedgehog.name: Hedgehog}
KERNELS = (*DETERMINISTIC_KERNELS, *RANDOM_KERNELS, *LEARNED_KERNELS)


def make_kernel(kernel: str | Kernel, dim: int) -> Kernel:
    """Create the content kernel (similarity of queries and keys) with the given name.

    An instance of `Kernel` is returned unchanged. Random features are drawn with seed 0, and
    learned parameters have their initial values.
    """
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
        projection = draw_projection(default_num_features(dim), dim, generator=generator)
        return RANDOM_KERNELS[kernel](projection)
    if kernel in LEARNED_KERNELS:
        return LEARNED_KERNELS[kernel].identity(dim)
    raise unknown_name("kernel", kernel, KERNELS)


def rectified_kernel(kernel: str | Kernel, epsilon: float) -> FlooredRelu:
    """Create a kernel that compares rectified queries and keys (after a ReLU), by its name.

    Rectified entries have a small positive minimum instead of 0, which `epsilon` sets. See
    `FlooredRelu`.
    """
    floored = {
        name: kind for name, kind in DETERMINISTIC_KERNELS.items() if issubclass(kind, FlooredRelu)
    }
    if not isinstance(kernel, str) or kernel not in floored:
        names = " or ".join(map(repr, floored))
        hint = f"Only kernel={names} takes epsilon."
        raise wrong_value("epsilon", epsilon, f"None with kernel={kernel!r}", hint)
    return floored[kernel](epsilon=epsilon)
