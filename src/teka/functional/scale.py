"""The factor of qᵀk."""

from teka.checks import POSITIVE, is_positive
from teka.errors import wrong_value


def check_scale(scale: float | None, dim: int) -> float:
    """The scale, 1/√d by default.

    Args:
        scale: The factor, or None.
        dim: Size d of queries and keys.

    Raises:
        ValueError: Not positive and finite.
    """
    if scale is None:
        return dim**-0.5
    if not is_positive(scale):
        raise wrong_value("scale", scale, POSITIVE)
    return float(scale)
