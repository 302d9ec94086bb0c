"""Content kernels κ(q, k), each one small class."""

import math

from torch import Generator

from teka.checks import check_sizes
from teka.errors import unknown_name, wrong_value
from teka.functional.kernel.base import FeatureKernel, Kernel
from teka.functional.kernel.constant import Constant
from teka.functional.kernel.elu import Elu
from teka.functional.kernel.floored_relu import FlooredRelu
from teka.functional.kernel.focused import Focused
from teka.functional.kernel.hedgehog import Hedgehog
from teka.functional.kernel.hyperbolic import Hyperbolic
from teka.functional.kernel.optimal import Optimal
from teka.functional.kernel.positive import Positive
from teka.functional.kernel.relu import Relu
from teka.functional.kernel.softmax import Softmax
from teka.functional.kernel.squared_relu import SquaredRelu
from teka.functional.kernel.taylor2 import Taylor2
from teka.functional.kernel.trigonometric import Trigonometric
from teka.functional.projection import draw_projection

RandomKernel = Positive | Hyperbolic | Optimal | Trigonometric

# Each is made without arguments.
DETERMINISTIC_KERNELS: dict[str, type[Kernel]] = {
    kernel.name: kernel for kernel in (Softmax, SquaredRelu, Focused, Relu, Elu, Taylor2, Constant)
}
# Each is made from its projection.
RANDOM_KERNELS: dict[str, type[RandomKernel]] = {
    kernel.name: kernel for kernel in (Positive, Hyperbolic, Optimal, Trigonometric)
}
# Each is made from parameters, at first those of its `identity`.
LEARNED_KERNELS: dict[str, type[Hedgehog]] = {kernel.name: kernel for kernel in (Hedgehog,)}
KERNELS = (*DETERMINISTIC_KERNELS, *RANDOM_KERNELS, *LEARNED_KERNELS)


def default_num_features(dim: int) -> int:
    """Number of random features m = ⌊d ln d⌋, at least 1 (Choromanski et al. 2021, Theorem 4; Horn et al. 2021)."""
    check_sizes({"dim": dim}, 0)
    return max(1, int(dim * math.log(dim))) if dim > 0 else 1


def make_kernel(kernel: str | Kernel, dim: int) -> Kernel:
    """The kernel, or the one of that name; a random one is drawn with seed 0 and `default_num_features(dim)`.

    A learned one has not learned yet: its maps are the identity, in every head.

    Args:
        kernel: A name or an instance.
        dim: Size of queries and keys.

    Raises:
        ValueError: An unknown name, or something else altogether.
    """
    if isinstance(kernel, Kernel):
        return kernel
    if not isinstance(kernel, str):
        raise wrong_value("kernel", kernel, "a name or an instance of teka.functional.kernel.Kernel")
    if kernel in DETERMINISTIC_KERNELS:
        return DETERMINISTIC_KERNELS[kernel]()
    if kernel in RANDOM_KERNELS:
        generator = Generator().manual_seed(0)
        return RANDOM_KERNELS[kernel](draw_projection(default_num_features(dim), dim, generator=generator))
    if kernel in LEARNED_KERNELS:
        return LEARNED_KERNELS[kernel].identity(dim)
    raise unknown_name("kernel", kernel, KERNELS)


def with_floor(kernel: str | Kernel, epsilon: float) -> FlooredRelu:
    """The rectified kernel of that name with a floor ε.

    Args:
        kernel: A name.
        epsilon: ε > 0, the floor as a fraction of the root mean square of a vector's entries.

    Raises:
        ValueError: ε is not positive, or a kernel without a floor.
    """
    kind = DETERMINISTIC_KERNELS.get(kernel) if isinstance(kernel, str) else None
    if kind is None or not issubclass(kind, FlooredRelu):
        names = [name for name, other in DETERMINISTIC_KERNELS.items() if issubclass(other, FlooredRelu)]
        takes = " or ".join(map(repr, names))
        raise wrong_value("epsilon", epsilon, f"None with kernel={kernel!r}; kernel={takes} takes it")
    return kind(epsilon=epsilon)


__all__ = [
    "DETERMINISTIC_KERNELS",
    "KERNELS",
    "LEARNED_KERNELS",
    "RANDOM_KERNELS",
    "Constant",
    "Elu",
    "FeatureKernel",
    "Focused",
    "Hedgehog",
    "Hyperbolic",
    "Kernel",
    "Optimal",
    "Positive",
    "RandomKernel",
    "Relu",
    "Softmax",
    "SquaredRelu",
    "Taylor2",
    "Trigonometric",
    "default_num_features",
    "make_kernel",
    "with_floor",
]
