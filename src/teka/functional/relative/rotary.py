"""The rotary kernel: features turned by an angle of their position."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from teka.errors import unknown_name, wrong_shape, wrong_value
from teka.functional.kernel import FeatureKernel, Kernel, make_kernel
from teka.functional.placement import Placement
from teka.functional.relative.base import RotaryRelative
from teka.functional.relative.drawable import DrawableRelative
from teka.functional.relative.phase import phases, precise

ROTARY_NORMALIZERS = ("features", "lengths")


@dataclass(frozen=True)
class Rotary(RotaryRelative, DrawableRelative):
    """⟨R(x_i) a, R(x_j) b⟩ = ⟨a, R(x_j − x_i) b⟩, with R(x) the turn of features 2p and 2p + 1 together by ω_p·x.

    ω_p is a vector for each head and pair ("mixed" frequencies): planes may turn along any direction. Features after
    the last pair stay as they are. Turned are queries and keys with the softmax kernel, and the features φ with the
    others. There weights may be negative, and the denominator is not their sum but Σ_j ψ(q_i)ᵀψ(k_j) of what no turn
    changes: of the features as they are, ψ = φ ("features"), or of the lengths of the pairs,
    ψ_p = √(φ_2p² + φ_2p+1²), and |φ| after the last pair ("lengths").

    A weight may be larger than a denominator of features. Where query and keys share few of them, as rectified ones
    may, outputs grow large; `elu` or `positive`, whose features are all above 0, are the kernels for it. To one of
    lengths every key adds at least its weight's absolute value, so that |out| ≤ max |v| with every kernel. On a
    periodic grid frequencies are rounded to those of the torus.

    Source: Su et al. 2021 (RoFormer), §3.2 and §3.3 for φ; Heo et al. 2024 (RoPE-Mixed) for several axes; "lengths" is
    this library's.

    Args:
        frequency: ω in radians per unit of length, shape (heads, pairs, axes).
        normalizer: What the denominator of a kernel with features is made of, "features" or "lengths".

    Raises:
        ValueError: Another shape, no pairs, or an unknown name.
    """

    name: ClassVar[str] = "rotary"

    frequency: Float[Tensor, "heads pairs axes"]
    normalizer: str = "features"

    def __post_init__(self) -> None:
        if self.normalizer not in ROTARY_NORMALIZERS:
            raise unknown_name("normalizer", self.normalizer, ROTARY_NORMALIZERS)
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
        """Hold that there are frequencies for each of the heads and axes, and features for each of the pairs.

        Raises:
            ValueError: There are not; or lengths for the softmax kernel, whose weights are positive and their own sum.
        """
        if self.normalizer == "lengths" and not isinstance(kernel, FeatureKernel):
            expected = f"'features' with kernel={kernel.name!r}, which has no features to take lengths of"
            raise wrong_value("relative.normalizer", self.normalizer, expected)
        if (self.frequency.shape[0], self.frequency.shape[2]) != (heads, num_axes):
            expected = f"({heads}, pairs, {num_axes}) for {heads} heads and positions of {num_axes} axes"
            raise wrong_shape("relative.frequency", self.frequency.shape, expected)
        size = num_turned_features(kernel, dim)
        if 2 * self.frequency.shape[1] > size:
            expected = f"at most {size // 2} pairs for the {size} features of kernel={kernel.name!r}"
            raise wrong_shape("relative.frequency", self.frequency.shape, expected)

    def on(self, placement: Placement) -> "Rotary":
        """The kernel with frequencies that fit the grid's periods; rounded components have a gradient of 0."""
        return Rotary(placement.torus_frequency(precise(self.frequency)), self.normalizer)

    def turn(
        self, features: Float[Tensor, "batch heads tokens features"], positions: Float[Tensor, "*batch tokens axes"]
    ) -> Float[Tensor, "batch heads tokens features"]:
        """(f_2p cos ω_p·x − f_2p+1 sin ω_p·x, f_2p sin ω_p·x + f_2p+1 cos ω_p·x) for every pair, then the others."""
        num_turned = 2 * self.frequency.shape[1]
        turned = turn_pairs(features[..., :num_turned], phases(self.frequency, positions))
        if num_turned == features.shape[-1]:
            return turned
        return torch.cat([turned, features[..., num_turned:]], dim=-1)

    def normalizing(
        self, features: Float[Tensor, "batch heads tokens features"]
    ) -> Float[Tensor, "batch heads tokens normalizing"]:
        """ψ of the denominator: the features themselves, or the lengths of their pairs and |φ| of the others."""
        if self.normalizer == "features":
            return features
        num_turned = 2 * self.frequency.shape[1]
        lengths = pair_lengths(features[..., :num_turned])
        if num_turned == features.shape[-1]:
            return lengths
        return torch.cat([lengths, features[..., num_turned:].abs()], dim=-1)


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


def pair_lengths(
    features: Float[Tensor, "batch heads tokens turned"],
) -> Float[Tensor, "batch heads tokens pairs"]:
    """√(f_2p² + f_2p+1²) of every pair, with a gradient of 0 where it is 0.

    Args:
        features: As many as two for each pair.
    """
    first, second = features.unflatten(-1, (-1, 2)).unbind(dim=-1)
    # The root has no gradient at 0, so that it is taken of 1 there. Squares of features might underflow.
    zero = (first == 0) & (second == 0)
    return torch.hypot(first.masked_fill(zero, 1.0), second).masked_fill(zero, 0.0)


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
