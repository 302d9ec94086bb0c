"""What a relative kernel offers that can be asked for by name."""

from abc import abstractmethod

from torch import Generator

from teka.functional.kernel import Kernel
from teka.functional.relative.base import Relative


class DrawableRelative(Relative):
    """A relative kernel of which an example can be drawn at random; one of your own need not be."""

    @classmethod
    @abstractmethod
    def draw(
        cls, generator: Generator, *, heads: int, dim: int, num_axes: int, kernel: str | Kernel
    ) -> "DrawableRelative":
        """An example with random parameters in float64, large enough that each of them matters.

        Args:
            generator: Source of randomness, on the CPU; the same state gives the same kernel.
            heads: Number of heads.
            dim: Size of queries and keys.
            num_axes: Number of axes of the positions.
            kernel: The content kernel, by name or as an instance.

        Raises:
            ValueError: There is none for this content kernel.
        """
