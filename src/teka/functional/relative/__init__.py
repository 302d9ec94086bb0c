"""Relative kernels, which are attention weights that depend on the offset of query and key.

`RELATIVES` lists their names, such as "rotary" and "alibi".
"""

from torch import Generator

from teka.errors import unknown_name_error, wrong_value
from teka.functional.kernels.content_kernel import ContentKernel
from teka.functional.relative.biases import Alibi, Decay, Kerple, T5Bias
from teka.functional.relative.clipped import ClippedDistanceBias, ClippedDistanceFeatures
from teka.functional.relative.fourier import Fourier
from teka.functional.relative.quadratic import BiasTable, GeneralizedQuadraticBias, QuadraticBias
from teka.functional.relative.relative_kernel import RelativeKernel
from teka.functional.relative.rotary import Rotary
from teka.functional.relative.rotation import JointSinusoidalBias, SinusoidalBias
from teka.functional.relative.signed_offsets import Shaw, TransformerXLBias
from teka.functional.relative.window import WindowBias

RELATIVES: dict[str, type[RelativeKernel]] = {
    kind.name: kind
    for kind in (
        SinusoidalBias,
        JointSinusoidalBias,
        ClippedDistanceBias,
        ClippedDistanceFeatures,
        QuadraticBias,
        GeneralizedQuadraticBias,
        BiasTable,
        Fourier,
        Rotary,
        Decay,
        Alibi,
        T5Bias,
        Kerple,
        Shaw,
        TransformerXLBias,
        WindowBias,
    )
}


def make_relative_kernel(
    relative: str | RelativeKernel,
    *,
    heads: int,
    dim: int,
    num_axes: int,
    kernel: str | ContentKernel,
) -> RelativeKernel:
    """Create the relative kernel (position-dependent attention weight) with a given name.

    Its parameters are drawn with seed 0. An instance of `RelativeKernel` is returned unchanged.
    """
    if isinstance(relative, RelativeKernel):
        return relative
    if not isinstance(relative, str):
        raise wrong_value(
            "relative",
            relative,
            "None, a name or an instance of teka.functional.relative.RelativeKernel",
        )
    if relative not in RELATIVES:
        raise unknown_name_error("relative", relative, RELATIVES)
    generator = Generator().manual_seed(0)
    sizes = {"heads": heads, "dim": dim, "num_axes": num_axes}
    return RELATIVES[relative].make_random_example(generator, **sizes, kernel=kernel)
