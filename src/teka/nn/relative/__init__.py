"""Relative kernels with learned parameters."""

from teka.errors import unknown_name, wrong_value
from teka.functional.relative import RELATIVES
from teka.nn.relative.base import RelativeModule
from teka.nn.relative.clipped import Clipped
from teka.nn.relative.clipped_features import ClippedFeatures
from teka.nn.relative.rotation import Rotation
from teka.nn.relative.rotation_joint import RotationJoint


def make_relative_module(
    relative: str | RelativeModule | None, *, num_axes: int, heads: int, dim_head: int, num_features: int | None
) -> RelativeModule | None:
    """The relative kernel, or a new one of that name.

    Args:
        relative: A name, a module or None.
        num_axes: Number of axes of the grid.
        heads: Number of heads.
        dim_head: Size of a head.
        num_features: Number of random features of the forms that have them.

    Raises:
        ValueError: An unknown name, or something else altogether.
    """
    if relative is None or isinstance(relative, RelativeModule):
        return relative
    if not isinstance(relative, str):
        raise wrong_value("relative", relative, "None, a name or a module such as teka.nn.Rotation")
    match relative:
        case "rotation":
            return Rotation(num_axes, heads, dim_head)
        case "rotation_joint":
            return RotationJoint(num_axes, heads, dim_head)
        case "clipped":
            return Clipped(dim_head)
        case "clipped_features":
            return ClippedFeatures(dim_head, num_features=num_features)
        case _:
            raise unknown_name("relative", relative, RELATIVES)


__all__ = ["Clipped", "ClippedFeatures", "RelativeModule", "Rotation", "RotationJoint", "make_relative_module"]
