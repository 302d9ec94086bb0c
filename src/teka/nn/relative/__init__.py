"""Relative kernels with learned parameters."""

from teka.checks import check_name
from teka.errors import unknown_name, wrong_value
from teka.functional.relative import NUM_FOURIER_WAVES, ROTARY_NORMALIZERS
from teka.nn.relative.base import RelativeModule
from teka.nn.relative.clipped import Clipped
from teka.nn.relative.clipped_features import ClippedFeatures
from teka.nn.relative.embedded_table import EmbeddedTable
from teka.nn.relative.fourier import Fourier
from teka.nn.relative.generalized_quadratic import GeneralizedQuadratic
from teka.nn.relative.quadratic import Quadratic
from teka.nn.relative.rotary import Rotary
from teka.nn.relative.rotation import Rotation
from teka.nn.relative.rotation_joint import RotationJoint
from teka.nn.relative.table import Table

RELATIVE_MODULES: dict[str, type[RelativeModule]] = {
    "rotation": Rotation,
    "rotation_joint": RotationJoint,
    "clipped": Clipped,
    "clipped_features": ClippedFeatures,
    "quadratic": Quadratic,
    "generalized_quadratic": GeneralizedQuadratic,
    "table": Table,
    "fourier": Fourier,
    "rotary": Rotary,
}


def relative_class(relative: str | RelativeModule | None) -> type[RelativeModule] | None:
    """The class of a relative kernel, a name, a module or None.

    Args:
        relative: The relative kernel.

    Raises:
        ValueError: An unknown name, or something else altogether.
    """
    if relative is None:
        return None
    if isinstance(relative, RelativeModule):
        return type(relative)
    if not isinstance(relative, str):
        raise wrong_value("relative", relative, "None, a name or a module such as teka.nn.Rotation")
    if relative not in RELATIVE_MODULES:
        raise unknown_name("relative", relative, RELATIVE_MODULES)
    return RELATIVE_MODULES[relative]


def make_relative_module(
    relative: str | RelativeModule | None,
    *,
    num_axes: int,
    heads: int,
    dim_head: int,
    num_features: int | None,
    kernel_features: int,
    num_waves: int | None = None,
    rotary_normalizer: str | None = None,
) -> RelativeModule | None:
    """The relative kernel, or a new one of that name.

    Args:
        relative: A name, a module or None.
        num_axes: Number of axes of the grid.
        heads: Number of heads that use it.
        dim_head: Size of a head.
        num_features: Number of random features of the forms that have them.
        kernel_features: Number of features of the content kernel, `dim_head` for one without a feature map, of which
            "rotary" turns all pairs.
        num_waves: Number of waves F of "fourier".
        rotary_normalizer: What the denominator of "rotary" is made of.

    Raises:
        ValueError: An unknown name, something else altogether, an option of another kernel, or fewer than two features
            to turn.
    """
    relative_class(relative)
    for argument, given, name in (
        ("num_waves", num_waves, "fourier"),
        ("rotary_normalizer", rotary_normalizer, "rotary"),
    ):
        if given is not None and relative != name:
            raise wrong_value(argument, given, f"None with relative={relative!r}; {name!r} by name takes it")
    match relative:
        case "rotation":
            return Rotation(num_axes, heads, dim_head)
        case "rotation_joint":
            return RotationJoint(num_axes, heads, dim_head)
        case "clipped":
            return Clipped(dim_head)
        case "clipped_features":
            return ClippedFeatures(dim_head, num_features=num_features)
        case "quadratic":
            return Quadratic(num_axes, heads)
        case "generalized_quadratic":
            return GeneralizedQuadratic(num_axes, heads)
        case "table":
            return Table(num_axes, heads)
        case "fourier":
            return Fourier(num_axes, heads, num_waves=NUM_FOURIER_WAVES if num_waves is None else num_waves)
        case "rotary":
            if kernel_features < 2:
                expected = "at least 2 with relative='rotary', which turns pairs of them"
                raise wrong_value("the number of features of kernel", kernel_features, expected)
            normalizer = ROTARY_NORMALIZERS[0] if rotary_normalizer is None else rotary_normalizer
            check_name("rotary_normalizer", normalizer, ROTARY_NORMALIZERS)
            return Rotary(num_axes, heads, kernel_features // 2, normalizer=normalizer)
        case str():
            raise unknown_name("relative", relative, RELATIVE_MODULES)
        case _:
            return relative


__all__ = [
    "Clipped",
    "ClippedFeatures",
    "EmbeddedTable",
    "Fourier",
    "GeneralizedQuadratic",
    "Quadratic",
    "RelativeModule",
    "Rotary",
    "Rotation",
    "RotationJoint",
    "Table",
    "make_relative_module",
]
