"""The rotary kernel with learned frequencies."""

from typing import ClassVar

import torch
from torch.nn import Parameter

from teka.errors import unknown_name, wrong_value
from teka.functional import relative
from teka.functional.relative import ROTARY_NORMALIZERS
from teka.nn.relative.base import RelativeModule
from teka.nn.relative.initial import check_sizes, random_directions


class Rotary(RelativeModule):
    """`teka.functional.Rotary` with learned ω, of lengths base^(−p / pairs) in random directions at first.

    The base of Heo et al. 2024 for images is 10, waves of 6 to 63 units of length; that of Su et al. 2021 for text is
    10,000.

    Args:
        num_axes: Number of axes n of the grid.
        heads: Number of heads.
        num_pairs: Number of pairs of features that are turned, at most half of the content kernel's features.
        base: Ratio of the longest wave to the shortest, nearly.
        normalizer: What the denominator of a kernel with features is made of: "features", as they are (Su et al. 2021),
            or "lengths", of turned pairs (this library), with which |out| ≤ max |v|. No parameter depends on it.

    Raises:
        ValueError: A size below 1, a base that is not positive, or an unknown name.
    """

    needs_content: ClassVar[bool] = True

    def __init__(
        self, num_axes: int, heads: int, num_pairs: int, *, base: float = 10.0, normalizer: str = "features"
    ) -> None:
        super().__init__()
        check_sizes({"num_axes": num_axes, "heads": heads, "num_pairs": num_pairs})
        if not base > 0:
            raise wrong_value("base", base, "a positive number")
        if normalizer not in ROTARY_NORMALIZERS:
            raise unknown_name("normalizer", normalizer, ROTARY_NORMALIZERS)
        self.normalizer = normalizer
        length = base ** -(torch.arange(num_pairs) / num_pairs)
        self.frequency = Parameter(length[:, None] * random_directions(heads, num_pairs, num_axes))

    def forward(self) -> relative.Rotary:
        """The kernel with the present parameters."""
        return relative.Rotary(self.frequency, self.normalizer)
