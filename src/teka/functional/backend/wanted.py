"""Which gradients of the sums over a grid are asked for."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Wanted:
    """Which gradients are asked for.

    Args:
        query_features: That of φ(q).
        key_features: That of φ(k).
        value: That of the values.
        matrices: Those of the axes' matrices.
    """

    query_features: bool = True
    key_features: bool = True
    value: bool = True
    matrices: bool = True

    @classmethod
    def from_needs(cls, needs: Sequence[bool]) -> "Wanted":
        """From a flag for φ(q), φ(k), v and every matrix, as autograd gives them."""
        query, key, value, *matrices = needs
        return cls(query, key, value, any(matrices))
