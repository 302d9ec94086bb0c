"""Relative kernels c(x_i − x_j; q_i) by name, each one small class."""

from torch import Generator

from teka.errors import unknown_name, wrong_value
from teka.functional.kernels.base import Kernel
from teka.functional.relative.base import Relative
from teka.functional.relative.biases import T5, Alibi, Decay, Kerple
from teka.functional.relative.clipped import Clipped, ClippedFeatures
from teka.functional.relative.fourier import Fourier
from teka.functional.relative.quadratic import GeneralizedQuadratic, Quadratic, Table
from teka.functional.relative.rotary import Rotary
from teka.functional.relative.rotation import Rotation, RotationJoint
from teka.functional.relative.signed import Shaw, TransformerXL
from teka.functional.relative.window import Window

_OF_THE_PAPER = (Rotation, RotationJoint, Clipped, ClippedFeatures)
_OTHERS = (
    Quadratic,
    GeneralizedQuadratic,
    Table,
    Fourier,
    Rotary,
    Decay,
    Alibi,
    T5,
    Kerple,
    Shaw,
    TransformerXL,
    Window,
)
RELATIVES: dict[str, type[Relative]] = {kind.name: kind for kind in (*_OF_THE_PAPER, *_OTHERS)}


def make_relative(
    relative: str | Relative, *, heads: int, dim: int, num_axes: int, kernel: str | Kernel
) -> Relative:
    """The relative kernel, or the one of that name with random parameters drawn with seed 0."""
    if isinstance(relative, Relative):
        return relative
    if not isinstance(relative, str):
        raise wrong_value(
            "relative", relative, "None, a name or an instance of teka.functional.relative.Relative"
        )
    if relative not in RELATIVES:
        raise unknown_name("relative", relative, RELATIVES)
    generator = Generator().manual_seed(0)
    return RELATIVES[relative].draw(
        generator, heads=heads, dim=dim, num_axes=num_axes, kernel=kernel
    )
