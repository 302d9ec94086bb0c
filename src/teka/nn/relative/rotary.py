"""The rotary kernel with learned frequencies."""

from typing import ClassVar

import torch
from torch.nn import Parameter

from teka.checks import POSITIVE, check_sizes, is_positive
from teka.errors import wrong_value
from teka.functional import relative
from teka.functional.relative import LENGTH_SHARE, ROTARY_NORMALIZERS
from teka.functional.relative.rotary import check_normalizer
from teka.nn.relative.base import RelativeModule
from teka.nn.relative.initial import random_directions


class Rotary(RelativeModule):
    """`teka.functional.Rotary` with learned ω, of lengths base^(−p / pairs) in random directions at first.

    The base of Heo et al. 2024 for images is 10, waves of 6 to 63 units of length; that of Su et al. 2021 for text is
    10,000.

    Args:
        num_axes: Number of axes n of the grid.
        heads: Number of heads.
        num_pairs: Number of pairs of features that are turned, at most half of the content kernel's features.
        base: Ratio of the longest wave to the shortest, nearly.
        normalizer: What the denominator of a kernel with features is made of, "mixed", "nonnegative", "lengths" or
            "features"; see `teka.functional.Rotary`. No parameter depends on it.
        length_share: λ of "mixed": outputs are at most 1/λ times the largest value.

    Raises:
        ValueError: A size below 1, a base that is not positive, an unknown name, or a share out of range.
    """

    needs_content: ClassVar[bool] = True

    def __init__(
        self,
        num_axes: int,
        heads: int,
        num_pairs: int,
        *,
        base: float = 10.0,
        normalizer: str = ROTARY_NORMALIZERS[0],
        length_share: float = LENGTH_SHARE,
    ) -> None:
        super().__init__()
        check_sizes({"num_axes": num_axes, "heads": heads, "num_pairs": num_pairs})
        if not is_positive(base):
            raise wrong_value("base", base, POSITIVE)
        check_normalizer(normalizer, length_share)
        self.normalizer, self.length_share = normalizer, length_share
        length = base ** -(torch.arange(num_pairs) / num_pairs)
        self.frequency = Parameter(length[:, None] * random_directions(heads, num_pairs, num_axes))

    def forward(self) -> relative.Rotary:
        """The kernel with the present parameters."""
        return relative.Rotary(self.frequency, self.normalizer, self.length_share)
