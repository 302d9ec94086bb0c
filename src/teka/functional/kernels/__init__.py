"""Content kernels, which are similarities of queries and keys, such as exp(qᵀk) in softmax.

`KERNELS` lists their names, such as "softmax" and "relu".
"""

from torch import Generator

from teka.errors import unknown_name_error, wrong_value
from teka.functional.kernels.content_kernel import ContentKernel
from teka.functional.kernels.feature_kernels import Constant, Elu, Hedgehog, Softmax, Taylor2
from teka.functional.kernels.random_features import (
    HyperbolicFeatures,
    OptimalPositiveFeatures,
    PositiveFeatures,
    RandomFeatureKernel,
    TrigonometricFeatures,
)
from teka.functional.kernels.random_projection import default_num_features, draw_projection
from teka.functional.kernels.rectified import FlooredRelu, Focused, Relu, SquaredRelu
from teka.functional.kernels.similarity import ConcatenationKernel, DotProduct, Gaussian

# Kernels without required arguments.
DETERMINISTIC_KERNELS: dict[str, type[ContentKernel]] = {
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
        ConcatenationKernel,
    )
}
# Kernels with a random projection.
RANDOM_KERNELS: dict[str, type[RandomFeatureKernel]] = {
    kernel.name: kernel
    for kernel in (
        PositiveFeatures,
        HyperbolicFeatures,
        OptimalPositiveFeatures,
        TrigonometricFeatures,
    )
}
# Kernels with learned parameters, which start from `with_identity_weights`.
LEARNED_KERNELS: dict[str, type[Hedgehog]] = {Hedgehog.name: Hedgehog}
KERNELS = (*DETERMINISTIC_KERNELS, *RANDOM_KERNELS, *LEARNED_KERNELS)


def make_content_kernel(kernel: str | ContentKernel, dim: int) -> ContentKernel:
    """Create the content kernel (similarity of queries and keys) with a given name.

    Random features are drawn with seed 0, and learned parameters have their initial values. An
    instance of `ContentKernel` is returned unchanged.
    """
    if isinstance(kernel, ContentKernel):
        return kernel
    if not isinstance(kernel, str):
        raise wrong_value(
            "kernel", kernel, "a name or an instance of teka.functional.kernels.ContentKernel"
        )
    if kernel in DETERMINISTIC_KERNELS:
        return DETERMINISTIC_KERNELS[kernel]()
    if kernel in RANDOM_KERNELS:
        generator = Generator().manual_seed(0)
        projection = draw_projection(default_num_features(dim), dim, generator=generator)
        return RANDOM_KERNELS[kernel](projection)
    if kernel in LEARNED_KERNELS:
        return LEARNED_KERNELS[kernel].with_identity_weights(dim)
    raise unknown_name_error("kernel", kernel, KERNELS)


def make_rectified_kernel(kernel: object, epsilon: float) -> FlooredRelu:
    """Create the kernel "relu", "squared_relu" or "focused" with a given `epsilon`.

    The features of these kernels are powers of a ReLU with a small positive minimum, which is
    proportional to `epsilon` (see `FlooredRelu`).

    Raises:
        ValueError: Another kernel, which has no such minimum.
    """
    floored = {
        name: kind for name, kind in DETERMINISTIC_KERNELS.items() if issubclass(kind, FlooredRelu)
    }
    if not isinstance(kernel, str) or kernel not in floored:
        names = " or ".join(map(repr, floored))
        hint = f"Only kernel={names} takes epsilon."
        raise wrong_value("epsilon", epsilon, f"None with kernel={kernel!r}", hint)
    return floored[kernel](epsilon=epsilon)
