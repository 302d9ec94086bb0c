"""The rotary kernel: features turned by an angle of their position."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from teka.checks import check_name, check_tensor, is_number
from teka.errors import wrong_shape, wrong_value
from teka.functional.kernel import FeatureKernel, Kernel, make_kernel
from teka.functional.placement import Placement
from teka.functional.relative.base import RotaryRelative
from teka.functional.relative.drawable import DrawableRelative
from teka.functional.relative.phase import phases, precise

ROTARY_NORMALIZERS = ("mixed", "nonnegative", "lengths", "features")

# δ of "nonnegative": no weight is below δ/2 of the lengths, so that rounding decides nothing where all are small.
LEAST_WEIGHT = 1e-3

# λ of "mixed": outputs are at most 1/λ times the largest value.
LENGTH_SHARE = 0.3


@dataclass(frozen=True)
class Rotary(RotaryRelative, DrawableRelative):
    """⟨R(x_i) a, R(x_j) b⟩ = ⟨a, R(x_j − x_i) b⟩, with R(x) the turn of features 2p and 2p + 1 together by ω_p·x.

    ω_p is a vector for each head and pair ("mixed" frequencies): planes may turn along any direction. Features after
    the last pair stay as they are. With the softmax kernel queries and keys are turned. With the others the features φ
    are, and weights w_ij = ⟨R(x_i) φ(q_i), R(x_j) φ(k_j)⟩ may be negative, so that their own sum is no denominator.
    What no turn changes gives one: the features, or the lengths ψ_p = √(φ_2p² + φ_2p+1²) of their pairs (|φ| after the
    last pair), of which |w_ij| ≤ ψ(q_i)·ψ(k_j). out_i = Σ_j w_ij v_j / D_i, with λ = `length_share`:

    | normalizer | D_i | |out| is at most |
    |---|---|---|
    | "mixed" | Σ_j [(1 − λ) φ(q_i)·φ(k_j) + λ ψ(q_i)·ψ(k_j)] | max |v| / λ |
    | "lengths" | Σ_j ψ(q_i)·ψ(k_j) | max |v| |
    | "nonnegative" | Σ_j w_ij, of w_ij = ½ [(1 + δ) ψ(q_i)·ψ(k_j) + ⟨R(x_i) φ(q_i), R(x_j) φ(k_j)⟩] > 0 | max |v| |
    | "features" | Σ_j φ(q_i)·φ(k_j) | nothing |

    "features" is RoFormer's: where query and keys share few features its outputs can be any size.
    A kernel whose weights may be negative before any turn (`FeatureKernel.nonnegative`) has "lengths" for "mixed". A
    pair that holds a token without a position is not turned and counts in D with its weight, as without a relative
    kernel. On a periodic grid frequencies are rounded to those of the torus.

    Source: Su et al. 2021 (RoFormer), §3.2 and §3.3 for φ and "features"; Heo et al. 2024 (RoPE-Mixed) for several
    axes; the bounded denominators are this library's (docs/maths/rotary.md).

    Args:
        frequency: ω in radians per unit of length, shape (heads, pairs, axes).
        normalizer: What the denominator of a kernel with features is made of.
        length_share: λ of "mixed", above 0 and at most 1.

    Raises:
        ValueError: Another shape, no pairs, an unknown name, or a share out of range.
    """

    name: ClassVar[str] = "rotary"

    frequency: Float[Tensor, "heads pairs axes"]
    normalizer: str = ROTARY_NORMALIZERS[0]
    length_share: float = LENGTH_SHARE

    def __post_init__(self) -> None:
        check_normalizer(self.normalizer, self.length_share)
        check_tensor("frequency", self.frequency, "heads", "pairs", "axes")

    @classmethod
    def draw(cls, generator: Generator, *, heads: int, dim: int, num_axes: int, kernel: str | Kernel) -> "Rotary":
        """Frequencies ~ N(0, 1) for every pair of features of the content kernel.

        Raises:
            ValueError: It has fewer than two.
        """
        num_pairs = num_turned_features(make_kernel(kernel, dim), dim) // 2
        return cls(torch.randn(heads, num_pairs, num_axes, generator=generator, dtype=torch.float64))

    def check(self, *, heads: int, dim: int, num_axes: int, kernel: Kernel) -> None:
        """Check that there are frequencies for each of the heads and axes, and features for each of the pairs.

        Raises:
            ValueError: There are not.
        """
        if (self.frequency.shape[0], self.frequency.shape[2]) != (heads, num_axes):
            expected = f"({heads}, pairs, {num_axes}) for {heads} heads and positions of {num_axes} axes"
            raise wrong_shape("relative.frequency", self.frequency.shape, expected)
        size = num_turned_features(kernel, dim)
        if 2 * self.frequency.shape[1] > size:
            expected = f"at most {size // 2} pairs for the {size} features of kernel={kernel.name!r}"
            raise wrong_shape("relative.frequency", self.frequency.shape, expected)

    def for_kernel(self, kernel: Kernel) -> "Rotary":
        """With a kernel whose features may give negative weights "lengths": those have no place in a denominator."""
        signed = isinstance(kernel, FeatureKernel) and not kernel.nonnegative
        return replace(self, normalizer="lengths") if signed and self.normalizer == "mixed" else self

    def bound_with(self, kernel: Kernel) -> float | None:
        """What the table above says of kernels with features; a turn of queries and keys leaves that of the others.

        A pair that is not turned counts with a weight that may be negative, unless the kernel's may not: of the others
        "nonnegative" alone has a bound.
        """
        if not isinstance(kernel, FeatureKernel):
            return kernel.bound
        if self.sums_weights:
            return 1.0
        if self.normalizer == "features" or not kernel.nonnegative:
            return None
        return 1 / self.length_share if self.normalizer == "mixed" else 1.0

    def on(self, placement: Placement) -> "Rotary":
        """The kernel with frequencies that fit the grid's periods; rounded components have a gradient of 0."""
        return replace(self, frequency=placement.torus_frequency(precise(self.frequency)))

    def weighing(
        self,
        features: Float[Tensor, "batch heads tokens features"],
        positions: Float[Tensor, "*batch tokens axes"] | None,
    ) -> Float[Tensor, "batch heads tokens weighing"]:
        """R(x) φ, or with "nonnegative" [√(1 + δ) ψ, R(x) φ] / √2."""
        turned = features if positions is None else self.turn(features, positions)
        if not self.sums_weights:
            return turned
        lengths = self.lengths(features) * math.sqrt((1 + LEAST_WEIGHT) / 2)
        return torch.cat([lengths, turned * math.sqrt(0.5)], dim=-1)

    @property
    def sums_weights(self) -> bool:
        """Whether the denominator is the sum of the weights."""
        return self.normalizer == "nonnegative"

    def normalizing(
        self, features: Float[Tensor, "batch heads tokens features"], *, placed: bool
    ) -> Float[Tensor, "batch heads tokens normalizing"]:
        """The vectors of D: φ, or [√(1 − λ) φ, √λ ψ], which is ψ with λ = 1."""
        if not placed or self.normalizer == "features":
            return features
        share = self.length_share if self.normalizer == "mixed" else 1.0
        lengths = self.lengths(features)
        if share == 1:
            return lengths
        return torch.cat([features * math.sqrt(1 - share), lengths * math.sqrt(share)], dim=-1)

    def turn(
        self, vectors: Float[Tensor, "batch heads tokens dim"], positions: Float[Tensor, "*batch tokens axes"]
    ) -> Float[Tensor, "batch heads tokens dim"]:
        """(f_2p cos ω_p·x − f_2p+1 sin ω_p·x, f_2p sin ω_p·x + f_2p+1 cos ω_p·x) for every pair, then the others."""
        num_turned = 2 * self.frequency.shape[1]
        turned = turn_pairs(vectors[..., :num_turned], phases(self.frequency, positions, vectors.dtype))
        if num_turned == vectors.shape[-1]:
            return turned
        return torch.cat([turned, vectors[..., num_turned:]], dim=-1)

    def lengths(
        self, features: Float[Tensor, "batch heads tokens features"]
    ) -> Float[Tensor, "batch heads tokens lengths"]:
        """ψ: the lengths of the turned pairs, then |φ| of the others."""
        num_turned = 2 * self.frequency.shape[1]
        lengths = pair_lengths(features[..., :num_turned])
        if num_turned == features.shape[-1]:
            return lengths
        return torch.cat([lengths, features[..., num_turned:].abs()], dim=-1)


def check_normalizer(normalizer: str, length_share: float) -> None:
    """Check that a denominator of `Rotary` is known, and λ a share.

    Raises:
        ValueError: They are not.
    """
    check_name("normalizer", normalizer, ROTARY_NORMALIZERS)
    if not (is_number(length_share) and 0 < length_share <= 1):
        raise wrong_value("length_share", length_share, "above 0 and at most 1")


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
