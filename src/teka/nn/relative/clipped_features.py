"""The clipped kernel (strategy 2) in the paper's form, with learned distance embeddings."""

from teka.functional import relative
from teka.functional.relative import MAX_DISTANCE
from teka.nn.random_features import RandomFeatures
from teka.nn.relative.clipped import Clipped


class ClippedFeatures(Clipped):
    """`teka.functional.ClippedFeatures` with learned embeddings; its projection is redrawn with the others.

    Args:
        dim_head: Size d of a query.
        max_distance: The last ring k.
        ring_width: Distance between neighbouring rings in physical units.
        num_features: Number of random features m, ⌊d ln d⌋ by default.

    Raises:
        ValueError: A distance or size below 1, or a width that is not positive.
    """

    def __init__(
        self,
        dim_head: int,
        *,
        max_distance: int = MAX_DISTANCE,
        ring_width: float = 1.0,
        num_features: int | None = None,
    ) -> None:
        super().__init__(dim_head, max_distance=max_distance, ring_width=ring_width)
        self.random_features = RandomFeatures("positive", dim_head, num_features=num_features)

    def forward(self) -> relative.ClippedFeatures:
        """The kernel with the present parameters."""
        projection = self.random_features.projection
        return relative.ClippedFeatures(self.distance_embedding, self.ring_width, projection)
