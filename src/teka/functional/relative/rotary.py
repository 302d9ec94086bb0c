"""The rotary kernel: features turned by an angle of their position."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from teka.errors import wrong_shape, wrong_value
from teka.functional.kernel import FeatureKernel, Kernel, make_kernel
from teka.functional.placement import Placement
from teka.functional.relative.base import RotaryRelative
from teka.functional.relative.drawable import DrawableRelative
from teka.functional.relative.phase import phases, precise


@dataclass(frozen=True)
class Rotary(RotaryRelative, DrawableRelative):
    """⟨R(x_i) a, R(x_j) b⟩ = ⟨a, R(x_j − x_i) b⟩, with R(x) the turn of features 2p and 2p + 1 together by ω_p·x.

    ω_p is a vector for each head and pair ("mixed" frequencies): planes may turn along any direction. Features after
    the last pair stay as they are. Turned are queries and keys with the softmax kernel, and the features φ with the
    others. There the denominator has the features as they are, so that weights may be negative and larger than it.
    Where query and keys share few features, as rectified ones may, outputs grow large; `elu` or `positive`, whose
    features are all above 0, are the kernels for it. On a periodic grid frequencies are rounded to those of the torus.

    Source: Su et al. 2021 (RoFormer), §3.2 and §3.3 for φ; Heo et al. 2024 (RoPE-Mixed) for several axes.

    Args:
        frequency: ω in radians per unit of length, shape (heads, pairs, axes).

    Raises:
        ValueError: Another shape, or no pairs.
    """

    name: ClassVar[str] = "rotary"

    frequency: Float[Tensor, "heads pairs axes"]

    def __post_init__(self) -> None:
        if self.frequency.ndim != 3 or self.frequency.shape[1] < 1:
            raise wrong_shape("frequency", self.frequency.shape, "(heads, pairs, axes) with at least one pair")

    @classmethod
    def draw(cls, generator: Generator, *, heads: int, dim: int, num_axes: int, kernel: str | Kernel) -> "Rotary":
        """Frequencies ~ N(0, 1) for every pair of features of the content kernel.

        Raises:
            ValueError: It has fewer than two.
        """
        num_pairs = num_turned_features(make_kernel(kernel, dim), dim) // 2
        return cls(torch.randn(heads, num_pairs, num_axes, generator=generator, dtype=torch.float64))

    def check(self, *, heads: int, dim: int, num_axes: int, kernel: Kernel) -> None:
        """Hold that there are frequencies for each of the heads and axes, and features for each of the pairs."""
        if (self.frequency.shape[0], self.frequency.shape[2]) != (heads, num_axes):
            expected = f"({heads}, pairs, {num_axes}) for {heads} heads and positions of {num_axes} axes"
            raise wrong_shape("relative.frequency", self.frequency.shape, expected)
        size = num_turned_features(kernel, dim)
        if 2 * self.frequency.shape[1] > size:
            expected = f"at most {size // 2} pairs for the {size} features of kernel={kernel.name!r}"
            raise wrong_shape("relative.frequency", self.frequency.shape, expected)

    def on(self, placement: Placement) -> "Rotary":
        """The kernel with frequencies that fit the grid's periods; rounded components have a gradient of 0."""
        return dataclasses.replace(self, frequency=placement.torus_frequency(precise(self.frequency)))

    def turn(
        self, features: Float[Tensor, "batch heads tokens features"], positions: Float[Tensor, "*batch tokens axes"]
    ) -> Float[Tensor, "batch heads tokens features"]:
        """(f_2p cos ω_p·x − f_2p+1 sin ω_p·x, f_2p sin ω_p·x + f_2p+1 cos ω_p·x) for every pair, then the others."""
        num_turned = 2 * self.frequency.shape[1]
        turned = turn_pairs(features[..., :num_turned], phases(self.frequency, positions))
        if num_turned == features.shape[-1]:
            return turned
        return torch.cat([turned, features[..., num_turned:]], dim=-1)


def turn_pairs(
    features: Float[Tensor, "batch heads tokens turned"], angle: Float[Tensor, "*shared heads tokens pairs"]
) -> Float[Tensor, "batch heads tokens turned"]:
    """Features 2p and 2p + 1 turned together by angle p.

    Args:
        features: As many as two for each pair.
        angle: Angles in radians.
    """
    cosine, sine = torch.cos(angle), torch.sin(angle)
    if torch.compiler.is_compiling():
        first, second = features.unflatten(-1, (-1, 2)).unbind(dim=-1)
        return torch.stack([first * cosine - second * sine, first * sine + second * cosine], dim=-1).flatten(-2)
    # The same as complex numbers: without a compiler to fuse the lines above, a third of their time. The copy has the
    # strides that complex numbers need, whatever those of the features.
    pairs = features.unflatten(-1, (-1, 2)).clone(memory_format=torch.contiguous_format)
    return torch.view_as_real(torch.view_as_complex(pairs) * torch.complex(cosine, sine)).flatten(-2)


def num_turned_features(kernel: Kernel, dim: int) -> int:
    """Number of features that can be turned: those of a feature map, or the entries of a query.

    Args:
        kernel: The content kernel.
        dim: Size of queries and keys.

    Raises:
        ValueError: Fewer than two.
    """
    size = kernel.num_features(dim) if isinstance(kernel, FeatureKernel) else dim
    if size < 2:
        expected = "a kernel of at least 2 features with relative='rotary', which turns pairs of them"
        raise wrong_value("kernel", kernel.name, expected)
    return size
