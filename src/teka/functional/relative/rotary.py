"""The rotary kernel: features rotated by an angle of their position."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Complex, Float
from torch import Generator, Tensor

from teka._compat import replace
from teka.checks import (
    POSITIVE_NUMBER,
    check_name,
    check_tensor,
    check_tensor_sizes,
    is_number,
    is_positive,
)
from teka.errors import wrong_shape, wrong_value
from teka.functional.backends import Cost, FeatureInputs, WeightedSums, with_ones
from teka.functional.backends.dense import fused_softmax, products_with_prefix
from teka.functional.backends.feature_sums import LinearFeatures, linear_sums
from teka.functional.backends.linear import DecodingState, Sizes, causal_step, left_by, linear_cost
from teka.functional.backends.triton import TritonPositions
from teka.functional.kernels import make_kernel
from teka.functional.kernels.base import DenseInputs, Kernel, apply_log_factor
from teka.functional.positions import Positions, check_heads_and_axes, phases
from teka.functional.relative.base import Relative, random_directions
from teka.functional.shapes import Coordinates, Keys, Outputs, Queries, Tokens, VectorPair

ROTARY_NORMALIZERS = ("mixed", "nonnegative", "lengths", "features")
PAIRINGS = ("adjacent", "halves")

# δ of "nonnegative": no weight is below δ/2 of the lengths, so that rounding decides nothing where all are small.
LEAST_WEIGHT = 1e-3
# λ of "mixed": outputs are at most 1/λ times the largest value.
LENGTH_SHARE = 0.3
# cos and sin of angles, as the complex numbers that rotate pairs where no compiler fuses the two.
Phasor = Tensor | tuple[Tensor, Tensor]
# What makes vectors of features at places, or of features without.
Placing = Callable[[Tokens, Phasor | None], Tensor]


@dataclass(frozen=True)
class Rotary(Relative):
    """⟨R(x_i) a, R(x_j) b⟩ = ⟨a, R(x_j − x_i) b⟩, with R(x) the rotation of features 2p and 2p + 1 together by ω_p·x.

    ω_p is a vector for each head and pair ("mixed" frequencies): planes may rotate along any direction. Features after
    the last pair stay as they are. With the softmax kernel queries and keys are rotated. With the others the features φ
    are, and weights w_ij = ⟨R(x_i) φ(q_i), R(x_j) φ(k_j)⟩ may be negative, so that their own sum is no denominator.
    What no rotation changes gives one: the features, or the lengths ψ_p = √(φ_2p² + φ_2p+1²) of their pairs (|φ| after
    the last pair), of which |w_ij| ≤ ψ(q_i)·ψ(k_j). out_i = Σ_j w_ij v_j / D_i, with λ = `length_share`:

    | normalizer | D_i | |out| is at most |
    |---|---|---|
    | "mixed" | Σ_j [(1 − λ) φ(q_i)·φ(k_j) + λ ψ(q_i)·ψ(k_j)] | max |v| / λ |
    | "lengths" | Σ_j ψ(q_i)·ψ(k_j) | max |v| |
    | "nonnegative" | Σ_j w_ij, of w_ij = ½ [(1 + δ) ψ(q_i)·ψ(k_j) + ⟨R(x_i) φ(q_i), R(x_j) φ(k_j)⟩] > 0 | max |v| |
    | "features" | Σ_j φ(q_i)·φ(k_j) | nothing |

    "features" is RoFormer's. A kernel whose weights may be negative without a rotation (`FeatureKernel.nonnegative`)
    has "lengths" for "mixed". A pair with a token without a position is not rotated and counts in D with its weight. On
    a periodic grid frequencies are rounded to those of the torus.

    Source: Su et al. 2021 (RoFormer), §3.2 and §3.3 for φ and "features"; Heo et al. 2024 (RoPE-Mixed) for several
    axes; the bounded denominators are this library's (docs/maths/rotary.md).

    >>> import torch
    >>> from teka.functional import Rotary, attention
    >>> tokens, places = torch.randn(3, 1, 2, 6, 4, dtype=torch.float64), torch.randn(6, 2, dtype=torch.float64)
    >>> relative = Rotary(torch.randn(2, 2, 2))
    >>> moved = attention(*tokens, kernel="relu", relative=relative, positions=places + 100)
    >>> torch.allclose(moved, attention(*tokens, kernel="relu", relative=relative, positions=places))
    True

    Args:
        frequency: ω in radians per unit of length, shape (heads, pairs, axes).
        normalizer: What the denominator of a kernel with features is made of; a ValueError for an unknown name.
        length_share: λ of "mixed", above 0 and at most 1; else a ValueError.
        pairing: Which features are rotated together: "adjacent", 2p and 2p + 1, or "halves", p and p + P of P pairs, as
            in GPT-NeoX; a ValueError for another.
    """

    name: ClassVar[str] = "rotary"
    rotates_features: ClassVar[bool] = True
    supports_decoding: ClassVar[bool] = True
    has_linear_features: ClassVar[bool] = True

    frequency: Float[Tensor, "heads pairs axes"]
    normalizer: str = ROTARY_NORMALIZERS[0]
    length_share: float = LENGTH_SHARE
    pairing: str = PAIRINGS[0]

    def __post_init__(self) -> None:
        check_name("normalizer", self.normalizer, ROTARY_NORMALIZERS)
        if not (is_number(self.length_share) and 0 < self.length_share <= 1):
            raise wrong_value("length_share", self.length_share, "above 0 and at most 1")
        check_name("pairing", self.pairing, PAIRINGS)
        check_tensor("frequency", self.frequency, "heads", "pairs", "axes")

    @classmethod
    def initial(
        cls,
        *,
        num_axes: int,
        heads: int,
        num_pairs: int,
        base: float = 10.0,
        normalizer: str = ROTARY_NORMALIZERS[0],
        length_share: float = LENGTH_SHARE,
    ) -> "Rotary":
        """Frequencies of length base^(−p / pairs) in random directions.

        Args:
            num_axes: Number of axes of the grid.
            heads: Number of heads.
            num_pairs: Number of pairs of features that are rotated.
            base: About the ratio of the longest wave to the shortest: 10 in Heo et al. 2024, 10,000 in Su et al. 2021.
            normalizer: See the class.
            length_share: See the class.
        """
        check_tensor_sizes({"num_axes": num_axes, "heads": heads, "num_pairs": num_pairs})
        if not is_positive(base):
            raise wrong_value("base", base, POSITIVE_NUMBER)
        length = base ** -(torch.arange(num_pairs) / num_pairs)
        frequency = length[:, None] * random_directions(heads, num_pairs, num_axes)
        return cls(frequency, normalizer, length_share)

    @classmethod
    def draw(
        cls, generator: Generator, *, heads: int, dim: int, num_axes: int, kernel: str | Kernel
    ) -> "Rotary":
        """Frequencies ~ N(0, 1) for every pair of features of the content kernel, which has at least one."""
        num_pairs = num_rotated_features(make_kernel(kernel, dim), dim) // 2
        return cls(
            torch.randn(heads, num_pairs, num_axes, generator=generator, dtype=torch.float64)
        )

    def check(self, *, heads: int, dim: int, num_axes: int, kernel: Kernel) -> None:
        check_heads_and_axes("frequency", self.frequency, heads, "pairs", num_axes)
        if kernel.normalizes_by_count:
            expected = "a kernel whose denominator is the sum of its weights with relative='rotary', which is no factor"
            raise wrong_value("kernel", kernel.name, expected)
        size = num_rotated_features(kernel, dim)
        if 2 * self.frequency.shape[1] > size:
            expected = (
                f"at most {size // 2} pairs for the {size} features of kernel={kernel.name!r}"
            )
            raise wrong_shape("relative.frequency", self.frequency.shape, expected)

    def for_kernel(self, kernel: Kernel) -> "Rotary":
        """With a kernel whose features may give negative weights "lengths": those have no place in a denominator."""
        signed = kernel.features is not None and not kernel.features.nonnegative
        return (
            replace(self, normalizer="lengths") if signed and self.normalizer == "mixed" else self
        )

    def bound_with(self, kernel: Kernel) -> float | None:
        """What the table above says of features; where untouched pairs may be negative, only "nonnegative" has one."""
        if kernel.features is None:
            return kernel.bound
        if self.sums_weights:
            return 1.0
        if self.normalizer == "features" or not kernel.features.nonnegative:
            return None
        return 1 / self.length_share if self.normalizer == "mixed" else 1.0

    def for_positions(self, positions: Positions) -> "Rotary":
        return replace(self, frequency=positions.torus_frequency(self.frequency))

    def extra_softmax_dim(self, positions: Positions) -> int:
        """0: they are rotated."""
        return 0

    def softmax_vectors(
        self, query: Queries, key: Keys, positions: Positions, *, scale: float
    ) -> VectorPair | None:
        if positions.num_prefix_tokens:
            return None
        phasor, key_phasor = self._phasors(positions, query)
        return self.rotated(scale * query, phasor), self.rotated(key, key_phasor)

    def dense_passes(self, num_axes: int) -> int:
        return 6

    def dense(self, pairs: DenseInputs, positions: Positions) -> Outputs:
        """Weights of rotated vectors over a denominator of what no rotation changes, or of the weights themselves."""
        kernel, value, first = pairs.kernel, pairs.value, positions.num_prefix_tokens
        features = kernel.features
        if kernel.is_softmax:
            rotated = self.softmax_vectors(pairs.query, pairs.key, positions, scale=pairs.scale)
            if rotated is not None:
                return fused_softmax(pairs.with_vectors(*rotated))
        vectors = kernel.dense_vectors if features is None else features.feature_maps
        options = {"scale": pairs.scale, "key_mask": pairs.key_mask, "is_causal": pairs.is_causal}
        of_query, of_key, log_scale = vectors(pairs.query, pairs.key, **options)
        phasor, key_phasor = self._phasors(positions, pairs.query)

        def products(vectors: Placing) -> Tensor:
            left, right = (
                vectors(of_query[:, :, first:], phasor),
                vectors(of_key[:, :, first:], key_phasor),
            )
            pairs = left @ right.transpose(-2, -1)
            if first:
                pairs = products_with_prefix(
                    vectors(of_query, None), vectors(of_key, None), pairs, first
                )
            return pairs

        weights = products(self.rotated if features is None else self.weighing)
        keep = pairs.mask()
        empty = None if keep is None else ~keep.any(dim=-1, keepdim=True)
        keep = None if keep is None or empty is None else keep | empty
        if features is None:
            output = (
                kernel.dense_weights(weights, log_relative=None, log_scale=None, keep=keep) @ value
            )
            return output if empty is None else output.masked_fill(empty, 0.0)
        totals = weights
        if not self.sums_weights:
            totals = products(lambda one, phasor: self.normalizing(one, placed=phasor is not None))
        totals, weights = (
            apply_log_factor(part, None, log_scale, keep) for part in (totals, weights)
        )
        output = WeightedSums(weights @ value, totals.sum(dim=-1)).divide(
            nonnegative=features.nonnegative
        )
        return output if empty is None else output.masked_fill(empty, 0.0)

    def triton_positions(
        self, positions: Positions, like: Tensor, num_features: int
    ) -> TritonPositions | None:
        is_supported = self.pairing == "adjacent" and not self.sums_weights
        if not is_supported or 2 * self.frequency.shape[1] != num_features:
            return None
        angles = positions.angles(self.frequency, like)
        query, key = (angle if angle.ndim == 4 else angle[None] for angle in angles)
        return TritonPositions(query, key, self.share_of_lengths)

    def costs(self, sizes: Sizes, positions: Positions) -> dict[str, Cost]:
        return {"linear": linear_cost(sizes)}

    def sums(self, backend: str, tokens: FeatureInputs, positions: Positions) -> WeightedSums:
        """The numerator from rotated features, the denominator from what no rotation changes or from the same."""
        return self.sums_at(tokens, *self._phasors(positions, tokens.value))

    def sums_without_positions(
        self, query_features: Tensor, key_features: Tensor, value: Tensor
    ) -> WeightedSums:
        return self.sums_at(
            FeatureInputs(query_features, query_features, key_features, value), None, None
        )

    def sums_at(
        self, tokens: FeatureInputs, phasor: Phasor | None, key_phasor: Phasor | None
    ) -> WeightedSums:
        """Return Σ_j w_ij v_j and D_i for rotated tokens, or for tokens without a position (no phasor)."""
        return linear_sums(
            tokens,
            self.rotated_features(tokens.query_features, phasor),
            self.rotated_features(tokens.key_features, key_phasor),
        )

    def linear_features(
        self, features: Tensor, positions: Positions, *, is_key: bool
    ) -> LinearFeatures:
        angle = phases(self.frequency, positions.places(features.device), features.dtype)
        return self.rotated_features(features, phasor_of(angle))

    def rotated_features(self, features: Tokens, phasor: Phasor | None) -> LinearFeatures:
        """Return the vectors of the numerator, and those of the denominator with their weights."""
        numerator = self.weighing(features, phasor)
        if self.sums_weights:
            return LinearFeatures(numerator)
        share = 0.0 if phasor is None else self.share_of_lengths
        terms = []
        if share < 1:
            terms.append((1 - share, features))
        if share > 0:
            terms.append((share, self.lengths(features)))
        return LinearFeatures(numerator, tuple(terms))

    def step(
        self, tokens: FeatureInputs, state: DecodingState | None, positions: Positions
    ) -> tuple[WeightedSums, DecodingState]:
        """Rotated features for the numerator; for the denominator, where it is not of the same, a state of its own."""
        phasor, _ = self._phasors(positions, tokens.value)
        left, right = (
            self.weighing(tokens.query_features, phasor),
            self.weighing(tokens.key_features, phasor),
        )
        value = with_ones(tokens.value)
        total = left_by(state, "total", right, tokens.value)
        above, total = causal_step(left, right, tokens.log_scale, value, total)
        if self.sums_weights:
            return WeightedSums.of_channels(above), DecodingState(0, total)
        left, right = (
            self.normalizing(one, placed=True)
            for one in (tokens.query_features, tokens.key_features)
        )
        unrotated = left_by(state, "unrotated", right, tokens.value[..., :0])
        totals, unrotated = causal_step(left, right, tokens.log_scale, value[..., -1:], unrotated)
        return WeightedSums(above[..., :-1], totals[..., -1]), DecodingState(0, total, unrotated)

    @property
    def sums_weights(self) -> bool:
        """Whether the denominator is the sum of the weights; else it is made of `normalizing`."""
        return self.normalizer == "nonnegative"

    @property
    def share_of_lengths(self) -> float:
        """The weight of lengths in a denominator that is not made of the weights, features having the rest."""
        return {"mixed": self.length_share, "lengths": 1.0}.get(self.normalizer, 0.0)

    def weighing(
        self, features: Tokens, phasor: Phasor | None
    ) -> Float[Tensor, "batch heads tokens weighing"]:
        """Vectors whose inner products are the weights: R(x) φ, or with "nonnegative" [√(1 + δ) ψ, R(x) φ] / √2."""
        rotated = self.rotated(features, phasor)
        if not self.sums_weights:
            return rotated
        lengths = self.lengths(features) * math.sqrt((1 + LEAST_WEIGHT) / 2)
        return torch.cat([lengths, rotated * math.sqrt(0.5)], dim=-1)

    def normalizing(
        self, features: Tokens, *, placed: bool
    ) -> Float[Tensor, "batch heads tokens normalizing"]:
        """Vectors of D, of pairs both somewhere or not: φ, or [√(1 − λ) φ, √λ ψ], which is ψ with λ = 1."""
        share = self.share_of_lengths if placed else 0.0
        if share == 0:
            return features
        lengths = self.lengths(features)
        if share == 1:
            return lengths
        return torch.cat([features * math.sqrt(1 - share), lengths * math.sqrt(share)], dim=-1)

    def rotate(self, vectors: Tokens, places: Coordinates) -> Tokens:
        """(f cos ω_p·x − g sin ω_p·x, f sin ω_p·x + g cos ω_p·x) for every pair (f, g), then the others."""
        return self.rotated(vectors, phasor_of(phases(self.frequency, places, vectors.dtype)))

    def _phasors(self, positions: Positions, like: Tensor) -> tuple[Phasor, Phasor]:
        angle, key_angle = positions.angles(self.frequency, like)
        phasor = phasor_of(angle)
        return phasor, phasor if key_angle is angle else phasor_of(key_angle)

    def rotated(self, vectors: Tokens, phasor: Phasor | None) -> Tokens:
        """Pairs of vectors after a rotation, then the others; those of tokens that are nowhere have none."""
        if phasor is None:
            return vectors
        if isinstance(phasor, tuple):
            cosine, sine = phasor
            first, second = self._pairs(vectors)
            rotated = first * cosine - second * sine, first * sine + second * cosine
        else:
            # Uncompiled, complex numbers take a third of the time of the lines above.
            together = torch.view_as_real(self._complex_pairs(vectors) * phasor)
            if self.pairing == "adjacent":
                return _joined(together.flatten(-2), self._others(vectors))
            rotated = together.unbind(dim=-1)
        if self.pairing == "halves":
            return _joined(torch.cat(rotated, dim=-1), self._others(vectors))
        return _joined(torch.stack(rotated, dim=-1).flatten(-2), self._others(vectors))

    def lengths(self, features: Tokens) -> Float[Tensor, "batch heads tokens lengths"]:
        """ψ: the lengths √(f² + g²) of the rotated pairs, with a gradient of 0 where they are 0; |φ| of the others."""
        others = self._others(features).abs()
        if not torch.compiler.is_compiling():
            return _joined(self._complex_pairs(features).abs(), others)
        # ONNX has no complex numbers; a compiler makes one pass of this. Over the largest of a token no square
        # underflows that would be seen, and the root has a gradient at 0.
        tiny = torch.finfo(features.dtype).tiny
        largest = features.detach().abs().amax(dim=-1, keepdim=True).clamp_min(tiny)
        first, second = self._pairs(features / largest)
        return _joined(largest * (first.square() + second.square() + tiny).sqrt(), others)

    def _pairs(self, vectors: Tokens) -> tuple[Tensor, Tensor]:
        """The first and the second features of every pair."""
        paired = vectors[..., : 2 * self.frequency.shape[1]]
        if self.pairing == "halves":
            first, second = paired.chunk(2, dim=-1)
        else:
            first, second = paired.unflatten(-1, (-1, 2)).unbind(dim=-1)
        return first, second

    def _complex_pairs(self, vectors: Tokens) -> Complex[Tensor, "batch heads tokens pairs"]:
        """f + i g of every pair (f, g)."""
        if self.pairing == "halves":
            return torch.complex(*self._pairs(vectors))
        paired = vectors[..., : 2 * self.frequency.shape[1]].unflatten(-1, (-1, 2))
        # A copy with the strides that complex numbers need takes half of the time of one from two parts.
        return torch.view_as_complex(paired.clone(memory_format=torch.contiguous_format))

    def _others(self, vectors: Tokens) -> Tensor:
        """The features that are in no pair."""
        return vectors[..., 2 * self.frequency.shape[1] :]


def _joined(of_pairs: Tensor, others: Tensor) -> Tensor:
    return of_pairs if others.shape[-1] == 0 else torch.cat([of_pairs, others], dim=-1)


def phasor_of(angle: Float[Tensor, "*shared heads tokens pairs"]) -> Phasor:
    """Phasors of angles in radians."""
    cosine, sine = torch.cos(angle), torch.sin(angle)
    return (cosine, sine) if torch.compiler.is_compiling() else torch.complex(cosine, sine)


def num_rotated_features(kernel: Kernel, dim: int) -> int:
    """Number of features that can be rotated, at least two: those of a feature map, or the entries of a query."""
    size = dim if kernel.features is None else kernel.features.num_features(dim)
    if size >= 2:
        return size
    expected = "a kernel of at least 2 features with relative='rotary', which rotates pairs of them"
    raise wrong_value("kernel", kernel.name, expected)
