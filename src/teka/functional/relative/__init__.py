"""Relative kernels c(x_i − x_j; q_i), each one small class."""

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from teka.errors import unknown_name, wrong_value
from teka.functional.kernel import default_num_features
from teka.functional.projection import draw_projection
from teka.functional.relative.base import Relative, RingRelative, SeparableRelative
from teka.functional.relative.clipped import Clipped
from teka.functional.relative.clipped_features import ClippedFeatures
from teka.functional.relative.rotation import Rotation
from teka.functional.relative.rotation_joint import RotationJoint

RELATIVES: dict[str, type[Relative]] = {
    relative.name: relative for relative in (Rotation, RotationJoint, Clipped, ClippedFeatures)
}
NUM_FREQUENCIES = 4  # Horn et al. 2021, appendix A.2
MAX_DISTANCE = 6  # Horn et al. 2021, §3


def initial_frequency(num_frequencies: int) -> Float[Tensor, "scales"]:
    """ω_s = 8^(−s/2) radians per unit of length: 1, .354, .125, .0442 for four (Horn et al. 2021, authors' code)."""
    return 8.0 ** (-torch.arange(num_frequencies, dtype=torch.float64) / 2)


def rotation_scale(dim: int, num_axes: int, num_frequencies: int) -> float:
    """1/√d' with d' = d + 2 · axes · scales, the size of the concatenated vectors (Horn et al. 2021)."""
    return (dim + 2 * num_axes * num_frequencies) ** -0.5


def make_relative(relative: str | Relative, *, heads: int, dim: int, num_axes: int) -> Relative:
    """The relative kernel, or the one of that name with parameters ~ N(0, 1) drawn with seed 0.

    Args:
        relative: A name or an instance.
        heads: Number of heads.
        dim: Size of queries and keys.
        num_axes: Number of axes of the positions.

    Raises:
        ValueError: An unknown name, or something else altogether.
    """
    if isinstance(relative, Relative):
        return relative
    if not isinstance(relative, str):
        raise wrong_value("relative", relative, "None, a name or an instance of teka.functional.relative.Relative")
    generator = Generator().manual_seed(0)
    if relative in (Rotation.name, RotationJoint.name):
        frequency = initial_frequency(NUM_FREQUENCIES)
        shape = (2, heads, num_axes, len(frequency))
        cosine_weight, sine_weight = torch.randn(shape, generator=generator, dtype=torch.float64)
        scale = rotation_scale(dim, num_axes, len(frequency))
        kind = Rotation if relative == Rotation.name else RotationJoint
        return kind(frequency, cosine_weight, sine_weight, scale)
    if relative in (Clipped.name, ClippedFeatures.name):
        embedding = torch.randn(MAX_DISTANCE + 1, dim, generator=generator, dtype=torch.float64)
        if relative == Clipped.name:
            return Clipped(embedding)
        projection = draw_projection(default_num_features(dim), dim, generator=generator)
        return ClippedFeatures(embedding, projection=projection)
    raise unknown_name("relative", relative, RELATIVES)


__all__ = [
    "MAX_DISTANCE",
    "NUM_FREQUENCIES",
    "RELATIVES",
    "Clipped",
    "ClippedFeatures",
    "Relative",
    "RingRelative",
    "Rotation",
    "RotationJoint",
    "SeparableRelative",
    "initial_frequency",
    "make_relative",
    "rotation_scale",
]
