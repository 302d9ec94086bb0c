"""Relative kernels c(x_i − x_j; q_i), each one small class."""

from torch import Generator

from teka.errors import unknown_name, wrong_value
from teka.functional.kernel import Kernel
from teka.functional.relative.base import (
    FactorRelative,
    Relative,
    RingRelative,
    RotaryRelative,
    SeparableRelative,
    StationaryRelative,
    WaveRelative,
)
from teka.functional.relative.clipped import MAX_DISTANCE, Clipped
from teka.functional.relative.clipped_features import ClippedFeatures
from teka.functional.relative.drawable import DrawableRelative
from teka.functional.relative.fourier import NUM_FOURIER_WAVES, Fourier
from teka.functional.relative.generalized_quadratic import GeneralizedQuadratic
from teka.functional.relative.quadratic import Quadratic
from teka.functional.relative.rotary import LENGTH_SHARE, ROTARY_NORMALIZERS, Rotary
from teka.functional.relative.rotation import NUM_FREQUENCIES, Rotation, initial_frequency, rotation_scale
from teka.functional.relative.rotation_joint import RotationJoint
from teka.functional.relative.table import Table

RELATIVES: dict[str, type[DrawableRelative]] = {
    relative.name: relative
    for relative in (
        Rotation,
        RotationJoint,
        Clipped,
        ClippedFeatures,
        Quadratic,
        GeneralizedQuadratic,
        Table,
        Fourier,
        Rotary,
    )
}


def make_relative(relative: str | Relative, *, heads: int, dim: int, num_axes: int, kernel: str | Kernel) -> Relative:
    """The relative kernel, or the one of that name with random parameters drawn with seed 0.

    Args:
        relative: A name or an instance.
        heads: Number of heads.
        dim: Size of queries and keys.
        num_axes: Number of axes of the positions.
        kernel: The content kernel, a name or an instance: "rotary" turns its features. The others ignore it.

    Raises:
        ValueError: An unknown name, something else altogether, or no such kernel for this content kernel.
    """
    if isinstance(relative, Relative):
        return relative
    if not isinstance(relative, str):
        raise wrong_value("relative", relative, "None, a name or an instance of teka.functional.relative.Relative")
    if relative not in RELATIVES:
        raise unknown_name("relative", relative, RELATIVES)
    generator = Generator().manual_seed(0)
    return RELATIVES[relative].draw(generator, heads=heads, dim=dim, num_axes=num_axes, kernel=kernel)


__all__ = [
    "LENGTH_SHARE",
    "MAX_DISTANCE",
    "NUM_FOURIER_WAVES",
    "NUM_FREQUENCIES",
    "RELATIVES",
    "ROTARY_NORMALIZERS",
    "Clipped",
    "ClippedFeatures",
    "DrawableRelative",
    "FactorRelative",
    "Fourier",
    "GeneralizedQuadratic",
    "Quadratic",
    "Relative",
    "RingRelative",
    "Rotary",
    "RotaryRelative",
    "Rotation",
    "RotationJoint",
    "SeparableRelative",
    "StationaryRelative",
    "Table",
    "WaveRelative",
    "initial_frequency",
    "make_relative",
    "rotation_scale",
]
