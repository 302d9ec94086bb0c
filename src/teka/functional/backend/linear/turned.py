"""Features turned by the angles of their positions."""

from jaxtyping import Float
from torch import Tensor

from teka.functional.placement import Placement
from teka.functional.relative import RotaryRelative


def turn(
    query_features: Float[Tensor, "batch heads queries features"],
    key_features: Float[Tensor, "batch heads keys features"],
    relative: RotaryRelative,
    placement: Placement,
) -> tuple[Float[Tensor, "batch heads queries features"], Float[Tensor, "batch heads keys features"]]:
    """Features of the placed queries and keys, turned."""
    return (
        relative.turn(query_features, placement.query.positions_like(query_features)),
        relative.turn(key_features, placement.key.positions_like(key_features)),
    )
