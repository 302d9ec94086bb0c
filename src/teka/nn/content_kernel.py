"""The content kernel of a layer: a kernel, or a module that holds the tensors of one."""

from teka.checks import check_name
from teka.errors import wrong_value
from teka.functional.kernel import DETERMINISTIC_KERNELS, KERNELS, LEARNED_KERNELS, RANDOM_KERNELS, Kernel
from teka.functional.relative import NUM_FREQUENCIES
from teka.nn.learned_features import LearnedFeatures
from teka.nn.random_features import RandomFeatures
from teka.nn.relative import ClippedFeatures, RelativeModule, RotationJoint

ContentKernel = Kernel | RandomFeatures | LearnedFeatures


def make_content_kernel(
    kernel: str | ContentKernel,
    *,
    relative: str | RelativeModule | None,
    content_heads: int,
    dim_head: int,
    num_features: int | None,
    num_axes: int,
) -> ContentKernel:
    """The content kernel, or a new one of that name.

    Args:
        kernel: A name, an instance or a module.
        relative: The relative kernel beside it, which may lengthen queries and keys.
        content_heads: Number of heads that attend by content.
        dim_head: Size of a head.
        num_features: Number of random features of the kernels that have them.
        num_axes: Number of axes of the grid.

    Raises:
        ValueError: An unknown name, a number of features that would have no effect, or learned features of other sizes.
    """
    random = isinstance(kernel, str) and kernel in RANDOM_KERNELS
    for_positions = relative == "clipped_features" or isinstance(relative, ClippedFeatures)
    if num_features is not None and not random and not for_positions:
        raise wrong_value("num_features", num_features, f"None with kernel={kernel!r}, which has no random features")
    if isinstance(kernel, LearnedFeatures) and (kernel.dim, kernel.heads) != (dim_head, content_heads):
        expected = f"dim={dim_head} and heads={content_heads}, as many as attend by content"
        raise wrong_value("kernel", kernel, expected)
    if isinstance(kernel, Kernel | RandomFeatures | LearnedFeatures):
        return kernel
    if random:
        joint = 2 * num_axes * NUM_FREQUENCIES if relative == "rotation_joint" else 0
        joint = relative.num_position_features if isinstance(relative, RotationJoint) else joint
        return RandomFeatures(kernel, dim_head + joint, num_features=num_features)
    check_name("kernel", kernel, KERNELS)
    if kernel in LEARNED_KERNELS:
        return LearnedFeatures(kernel, dim_head, content_heads)
    return DETERMINISTIC_KERNELS[kernel]()
