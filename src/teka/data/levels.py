"""Images as published: whole grey or colour levels, one byte each, before they become intensities."""

from dataclasses import dataclass

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from teka.data.dataset import Split


@dataclass(frozen=True)
class Levels:
    """Labelled images in whole levels 0 … highest.

    Everything that selects, places or resizes works on these, a quarter of the memory of float32, and rounds as the
    published files do; only what is used becomes a `Split`.

    Args:
        images: Levels, shape (N, C, H, W).
        labels: Class index of each image, shape (N,).
        highest: The level that becomes intensity 1.
    """

    images: UInt8[Tensor, "images channels height width"]
    labels: Int[Tensor, " images"]
    highest: int

    def __len__(self) -> int:
        return len(self.images)

    def take(self, indices: Int[Tensor, " chosen"]) -> "Levels":
        """The images at these indices, in this order."""
        return Levels(self.images[indices], self.labels[indices], self.highest)

    def to_split(self) -> Split:
        """Intensities: level / highest, in float32."""
        return Split(self.images.to(torch.float32).div_(self.highest), self.labels)
