"""Rotary position embedding (RoPE) for softmax attention and for linear attention."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Complex, Float
from torch import Generator, Tensor

from teka._compat import replace
from teka.checks import POSITIVE_NUMBER, check_name, check_tensor_sizes, is_number, is_positive
from teka.errors import wrong_shape, wrong_value
from teka.functional.backends.attention_sums import (
    AttentionFeatures,
    LinearAttentionInputs,
    WeightedSums,
)
from teka.functional.backends.costs import AttentionSizes, Cost, linear_cost
from teka.functional.backends.dense import fused_softmax_attention
from teka.functional.backends.linear import (
    DecodingState,
    decode_linear_attention,
    linear_attention_sums,
)
from teka.functional.backends.triton import TritonAngles
from teka.functional.kernels import make_content_kernel
from teka.functional.kernels.content_kernel import (
    ContentKernel,
    DenseAttentionInputs,
    multiply_by_log_factors,
)
from teka.functional.positions import Positions, phases
from teka.functional.relative.relative_kernel import RelativeKernel, random_directions
from teka.functional.shapes import Coordinates, Keys, Outputs, Queries, Tokens, VectorPair

ROTARY_NORMALIZERS = ("mixed", "nonnegative", "lengths", "features")
PAIRINGS = ("adjacent", "halves")

# δ of "nonnegative". A weight is at least δ/2 · ψ(q_i)·ψ(k_j), so that rounding errors do not
# dominate small weights.
LEAST_WEIGHT = 1e-3
# Default λ of "mixed".
LENGTH_SHARE = 0.3
# exp(i · angle) as a complex tensor, or its cosine and sine in a compiled graph, where real
# operations are fused.
Phasor = Tensor | tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Rotary(RelativeKernel):
    """Rotary position embedding (RoPE), for softmax attention and for linear attention.

    Each pair of features of a token is rotated by the angle ω·x, where x is the position of the
    token, and ω is a frequency vector of the head and the pair. The inner product of a rotated
    query and a rotated key depends only on the offset of their positions. Features after the last
    pair are not rotated. On a periodic grid, frequencies are rounded so that whole periods fit the
    grid.

    With the softmax kernel, queries and keys are rotated. With the other kernels the features φ are
    rotated, and the weights w_ij = ⟨R(x_i) φ(q_i), R(x_j) φ(k_j)⟩ with the rotation R may be
    negative. Their sum could therefore be close to 0, and the output out_i = Σ_j w_ij v_j / D_i
    needs another denominator D_i. Let ψ_p = √(φ_2p² + φ_2p+1²) be the lengths of the pairs (and |φ|
    after the last pair), with |w_ij| ≤ ψ(q_i)·ψ(k_j), and let λ be `length_share`:

    | normalizer | D_i | bound of |out| |
    |---|---|---|
    | "mixed" | Σ_j [(1 − λ) φ(q_i)·φ(k_j) + λ ψ(q_i)·ψ(k_j)] | max |v| / λ |
    | "lengths" | Σ_j ψ(q_i)·ψ(k_j) | max |v| |
    | "nonnegative" | Σ_j w'_ij | max |v| |
    | "features" | Σ_j φ(q_i)·φ(k_j), as in RoFormer | none |

    "nonnegative" also has other weights, w'_ij = ½ [(1 + δ) ψ(q_i)·ψ(k_j) + w_ij] > 0.

    For a kernel whose weights may be negative without a rotation (see `FeatureKernel`), "mixed"
    means "lengths". A pair with a token without a position is not rotated and adds its weight to
    D_i.

    Source: Su et al. 2021 (RoFormer), §3.2 and §3.3, for the rotation and "features"; Heo et al.
    2024 (RoPE-Mixed) for several axes. The bounded denominators are from this library
    (docs/maths/rotary.md).

    >>> import torch
    >>> from teka.functional import Rotary, attention
    >>> tokens = torch.randn(3, 1, 2, 6, 4, dtype=torch.float64)
    >>> positions = torch.randn(6, 2, dtype=torch.float64)
    >>> relative = Rotary(torch.randn(2, 2, 2))
    >>> output = attention(*tokens, kernel="relu", relative=relative, positions=positions)
    >>> shifted = attention(*tokens, kernel="relu", relative=relative, positions=positions + 100)
    >>> torch.allclose(shifted, output)
    True

    Args:
        frequency: ω in radians per unit of length, shape (heads, pairs, axes).
        normalizer: Denominator of a kernel with features: "mixed", "nonnegative", "lengths" or
            "features".
        length_share: λ of "mixed", above 0 and at most 1.
        pairing: Features that are rotated together: "adjacent" for 2p and 2p + 1, or "halves" for p
            and p + P of P pairs, as in GPT-NeoX.

    Raises:
        ValueError: If a name is unknown or a value is out of range.
    """

    name = "rotary"
    rotates_features = True
    can_add_positions_to_features = True
    supports_decoding = True

    frequency: Float[Tensor, "heads pairs axes"]
    normalizer: str = ROTARY_NORMALIZERS[0]
    length_share: float = LENGTH_SHARE
    pairing: str = PAIRINGS[0]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("normalizer", self.normalizer, ROTARY_NORMALIZERS)
        if not (is_number(self.length_share) and 0 < self.length_share <= 1):
            raise wrong_value("length_share", self.length_share, "above 0 and at most 1")
        check_name("pairing", self.pairing, PAIRINGS)

    @classmethod
    def with_initial_parameters(
        cls,
        *,
        num_axes: int,
        heads: int,
        num_pairs: int,
        base: float = 10.0,
        normalizer: str = ROTARY_NORMALIZERS[0],
        length_share: float = LENGTH_SHARE,
    ) -> "Rotary":
        """Create a rotary position embedding with frequency vectors in random directions.

        The length of the frequency vector of pair p of features is base^(−p / num_pairs).

        Args:
            num_axes: Number of axes of the grid.
            heads: Number of heads.
            num_pairs: Number of pairs of features that are rotated.
            base: Approximate ratio of the longest wavelength to the shortest. It is 10 in Heo et
                al. 2024 and 10,000 in Su et al. 2021.
            normalizer: Denominator, see `Rotary`.
            length_share: λ of "mixed".
        """
        check_tensor_sizes({"num_axes": num_axes, "heads": heads, "num_pairs": num_pairs})
        if not is_positive(base):
            raise wrong_value("base", base, POSITIVE_NUMBER)
        length = base ** -(torch.arange(num_pairs) / num_pairs)
        frequency = length[:, None] * random_directions(heads, num_pairs, num_axes)
        return cls(frequency, normalizer, length_share)

    @classmethod
    def make_random_example(
        cls,
        generator: Generator,
        *,
        heads: int,
        dim: int,
        num_axes: int,
        kernel: str | ContentKernel,
    ) -> "Rotary":
        """Create a rotary position embedding with random frequencies for all pairs of features."""
        shape = (heads, num_rotated_features(make_content_kernel(kernel, dim), dim) // 2, num_axes)
        return cls(torch.randn(shape, generator=generator, dtype=torch.float64))

    def check_kernel_and_positions(self, *, dim: int, kernel: ContentKernel, **sizes: int) -> None:
        super().check_kernel_and_positions(dim=dim, kernel=kernel, **sizes)
        if kernel.normalizes_by_count:
            hint = "relative='rotary' does not support kernels that divide by the number of keys."
            raise wrong_value("kernel", kernel.name, "normalized by the sum of its weights", hint)
        size = num_rotated_features(kernel, dim)
        if 2 * self.frequency.shape[1] > size:
            expected = (
                f"at most {size // 2} pairs for the {size} features of kernel={kernel.name!r}"
            )
            raise wrong_shape("relative.frequency", self.frequency.shape, expected)

    def adapt_to_kernel(self, kernel: ContentKernel) -> "Rotary":
        """Return this embedding, with another denominator if similarities may be negative.

        The sum of negative and positive similarities could be 0, and with it the denominator
        "mixed". It is then replaced by the denominator "lengths", which sums lengths of feature
        pairs.
        """
        is_signed = kernel.features is not None and not kernel.features.nonnegative
        if is_signed and self.normalizer == "mixed":
            return replace(self, normalizer="lengths")
        return self

    def adapt_to_positions(self, positions: Positions) -> "Rotary":
        if not any(positions.periods):
            return self
        return replace(self, frequency=positions.round_frequency_to_periods(self.frequency))

    def output_bound_with(self, kernel: ContentKernel) -> float | None:
        if kernel.features is None:
            return kernel.output_bound
        if self.normalizer == "nonnegative":
            return 1.0
        # The weights of pairs without a position are not rotated, and may be negative if those of
        # the kernel are.
        if self.normalizer == "features" or not kernel.features.nonnegative:
            return None
        return 1 / self.length_share if self.normalizer == "mixed" else 1.0

    def rotate(self, vectors: Tokens, coordinates: Coordinates) -> Tokens:
        """Rotate each pair of features of a token by an angle that is proportional to its position.

        A pair (f, g) becomes (f cos t − g sin t, f sin t + g cos t), where the angle t is the inner
        product of the frequency vector of the pair and the position. Features that belong to no
        pair are unchanged.
        """
        angle = phases(self.frequency, coordinates, vectors.dtype)
        return self._apply_phasor(vectors, compute_phasor(angle))

    def convert_to_softmax_vectors(
        self, query: Queries, key: Keys, positions: Positions, *, scale: float
    ) -> VectorPair | None:
        if positions.num_prefix_tokens:
            return None
        query_phasor, key_phasor = self._phasors(positions, query)
        query = self._apply_phasor(scale * query, query_phasor)
        return query, self._apply_phasor(key, key_phasor)

    def num_appended_entries(self, positions: Positions) -> int:
        return 0

    def num_weight_matrix_passes(self, num_axes: int) -> int:
        return 6

    def dense_attention(self, inputs: DenseAttentionInputs, positions: Positions) -> Outputs:
        kernel, features, first = inputs.kernel, inputs.kernel.features, positions.num_prefix_tokens
        if kernel.is_softmax:
            vectors = self.convert_to_softmax_vectors(
                inputs.query, inputs.key, positions, scale=inputs.scale
            )
            if vectors is not None:
                return fused_softmax_attention(inputs.with_softmax_vectors(*vectors))
        make_maps = kernel.inner_product_vectors if features is None else features.map_to_features
        options = {
            "scale": inputs.scale,
            "key_mask": inputs.key_mask,
            "is_causal": inputs.is_causal,
        }
        query, key, log_scale = make_maps(inputs.query, inputs.key, **options)
        query_phasor, key_phasor = self._phasors(positions, inputs.query)
        query_vectors = self._rotate_for_kernel(kernel, query[:, :, first:], query_phasor)
        key_vectors = self._rotate_for_kernel(kernel, key[:, :, first:], key_phasor)

        # Without annotations, which PyTorch 2.6 cannot compile in a function within a function.
        def products(part):
            with_positions = part(query_vectors) @ part(key_vectors).mT
            if not first:
                return with_positions
            left = part(self._rotate_for_kernel(kernel, query, None))
            right = part(self._rotate_for_kernel(kernel, key, None))
            rows = torch.cat([left[:, :, first:] @ right[:, :, :first].mT, with_positions], dim=-1)
            return torch.cat([left[:, :, :first] @ right.mT, rows], dim=2)

        weights = products(lambda vectors: vectors.numerator)
        keep, is_empty = inputs.attention_masks()
        if features is None:
            weights = kernel.weights_from_products(
                weights, log_relative=None, log_scale=None, keep=keep
            )
            output = weights @ inputs.value
        else:
            totals = weights
            if query_vectors.denominator:
                totals = products(AttentionFeatures.concatenate_denominator_features)
            weights = multiply_by_log_factors(weights, None, log_scale, keep)
            totals = multiply_by_log_factors(totals, None, log_scale, keep)
            sums = WeightedSums(weights @ inputs.value, totals.sum(dim=-1))
            output = sums.normalize(nonnegative=features.nonnegative)
        return output if is_empty is None else output.masked_fill(is_empty, 0.0)

    def _rotate_for_kernel(
        self, kernel: ContentKernel, vectors: Tokens, phasor: Phasor | None
    ) -> AttentionFeatures:
        """Rotate features, or queries and keys themselves if the content kernel has no features.

        `phasor` contains the cosines and sines of the angles. If it is None, nothing is rotated.
        """
        if kernel.features is None:
            return AttentionFeatures(self._apply_phasor(vectors, phasor))
        return self._rotate_features(vectors, phasor)

    def triton_angles(
        self, positions: Positions, like: Tensor, num_features: int
    ) -> TritonAngles | None:
        is_supported = self.pairing == "adjacent" and self.normalizer != "nonnegative"
        if not is_supported or 2 * self.frequency.shape[1] != num_features:
            return None
        angles = positions.compute_sinusoid_phases(self.frequency, like)
        query, key = (angle if angle.ndim == 4 else angle[None] for angle in angles)
        return TritonAngles(query, key, self._length_share)

    def estimate_costs(self, sizes: AttentionSizes, positions: Positions) -> dict[str, Cost]:
        return {"linear": linear_cost(sizes)}

    def weighted_sums(
        self, backend: str, tokens: LinearAttentionInputs, positions: Positions
    ) -> WeightedSums:
        return self.rotary_attention_sums(tokens, *self._phasors(positions, tokens.value))

    def sums_without_positions(
        self, query_features: Tensor, key_features: Tensor, value: Tensor
    ) -> WeightedSums:
        tokens = LinearAttentionInputs(query_features, query_features, key_features, value)
        return self.rotary_attention_sums(tokens, None, None)

    def rotary_attention_sums(
        self, tokens: LinearAttentionInputs, query_phasor: Phasor | None, key_phasor: Phasor | None
    ) -> WeightedSums:
        """Compute the numerator and denominator of linear attention with rotary embedding.

        The phasors contain the cosines and sines of the rotation angles. They are None for tokens
        without a position, whose features are not rotated.
        """
        return linear_attention_sums(
            tokens,
            self._rotate_features(tokens.query_features, query_phasor),
            self._rotate_features(tokens.key_features, key_phasor),
        )

    def add_positions_to_features(
        self, features: Tensor, positions: Positions, *, is_key: bool
    ) -> AttentionFeatures:
        angle = phases(self.frequency, positions.coordinates(features.device), features.dtype)
        return self._rotate_features(features, compute_phasor(angle))

    def decode_step(
        self, tokens: LinearAttentionInputs, state: DecodingState | None, positions: Positions
    ) -> tuple[WeightedSums, DecodingState]:
        phasor, _ = self._phasors(positions, tokens.value)
        query = self._rotate_features(tokens.query_features, phasor)
        key = self._rotate_features(tokens.key_features, phasor)
        return decode_linear_attention(tokens, query, key, state)

    @property
    def _length_share(self) -> float:
        """Share λ, from 0 to 1, that lengths of feature pairs have in the attention denominator.

        It is `length_share` for "mixed", 1 for "lengths" and 0 otherwise.
        """
        return {"mixed": self.length_share, "lengths": 1.0}.get(self.normalizer, 0.0)

    def _rotate_features(self, features: Tokens, phasor: Phasor | None) -> AttentionFeatures:
        """Rotate the features of tokens, and add the features for the attention denominator.

        `phasor` contains the cosines and sines of the rotation angles. It is None for tokens
        without a position, whose features are not rotated.
        """
        # In eager mode, the rotation and the lengths share one copy of the pairs.
        pairs = self._complex_pairs(features) if isinstance(phasor, Tensor) else None
        rotated = self._apply_phasor(features, phasor, pairs)
        if self.normalizer == "nonnegative":
            lengths = self.pair_lengths(features, pairs) * math.sqrt((1 + LEAST_WEIGHT) / 2)
            return AttentionFeatures(torch.cat([lengths, rotated * math.sqrt(0.5)], dim=-1))
        length_weight = 0.0 if phasor is None else self._length_share
        terms = []
        if length_weight < 1:
            terms.append((1 - length_weight, features))
        if length_weight > 0:
            terms.append((length_weight, self.pair_lengths(features, pairs)))
        return AttentionFeatures(rotated, tuple(terms))

    def _phasors(self, positions: Positions, like: Tensor) -> tuple[Phasor, Phasor]:
        angle, key_angle = positions.compute_sinusoid_phases(self.frequency, like)
        phasor = compute_phasor(angle)
        return phasor, phasor if key_angle is angle else compute_phasor(key_angle)

    def _apply_phasor(
        self, vectors: Tokens, phasor: Phasor | None, complex_pairs: Tensor | None = None
    ) -> Tokens:
        if phasor is None:
            return vectors
        if isinstance(phasor, tuple):
            cosine, sine = phasor
            first, second = self._split_into_pairs(vectors).unbind(dim=-1)
            rotated = [first * cosine - second * sine, first * sine + second * cosine]
            pairs = torch.stack(rotated, dim=-1)
        else:
            # In eager mode, complex numbers take a third of the time of real ones.
            if complex_pairs is None:
                complex_pairs = self._complex_pairs(vectors)
            pairs = torch.view_as_real(complex_pairs * phasor)
        if self.pairing == "halves":
            pairs = pairs.mT
        return _append_unpaired(pairs.flatten(-2), self._unpaired_features(vectors))

    def pair_lengths(
        self, features: Tokens, complex_pairs: Tensor | None = None
    ) -> Float[Tensor, "batch heads tokens lengths"]:
        """Return the length √(f² + g²) of each pair of features (f, g) that is rotated together.

        A rotation does not change these lengths. Features that belong to no pair follow at the end,
        as absolute values. The gradient is 0 where a length is 0. The pairs can be passed as
        `complex_pairs` if they have been computed before.
        """
        others = self._unpaired_features(features).abs()
        if not torch.compiler.is_compiling():
            if complex_pairs is None:
                complex_pairs = self._complex_pairs(features)
            return _append_unpaired(complex_pairs.abs(), others)
        # ONNX has no complex numbers. Relative to the largest feature of a token, no visible square
        # underflows, and the root has a finite gradient at 0.
        tiny = torch.finfo(features.dtype).tiny
        largest = features.detach().abs().amax(dim=-1, keepdim=True).clamp_min(tiny)
        first, second = self._split_into_pairs(features / largest).unbind(dim=-1)
        return _append_unpaired(largest * (first.square() + second.square() + tiny).sqrt(), others)

    def _split_into_pairs(self, vectors: Tokens) -> Float[Tensor, "batch heads tokens pairs 2"]:
        paired = vectors[..., : 2 * self.frequency.shape[1]]
        if self.pairing == "halves":
            return paired.unflatten(-1, (2, -1)).mT
        return paired.unflatten(-1, (-1, 2))

    def _complex_pairs(self, vectors: Tokens) -> Complex[Tensor, "batch heads tokens pairs"]:
        """Return each pair of features (f, g) as the complex number f + ig."""
        # Complex numbers need contiguous pairs. One copy is twice as fast as torch.complex of two
        # parts.
        pairs = self._split_into_pairs(vectors).clone(memory_format=torch.contiguous_format)
        return torch.view_as_complex(pairs)

    def _unpaired_features(self, vectors: Tokens) -> Tensor:
        return vectors[..., 2 * self.frequency.shape[1] :]


def _append_unpaired(paired: Tensor, others: Tensor) -> Tensor:
    return paired if others.shape[-1] == 0 else torch.cat([paired, others], dim=-1)


def compute_phasor(angle: Float[Tensor, "*shared heads tokens pairs"]) -> Phasor:
    """Return exp(i · angle), which rotates a complex number by the angle."""
    cosine, sine = torch.cos(angle), torch.sin(angle)
    return (cosine, sine) if torch.compiler.is_compiling() else torch.complex(cosine, sine)


def num_rotated_features(kernel: ContentKernel, dim: int) -> int:
    """Return how many entries of each token a rotary position embedding can rotate.

    For a content kernel with a feature map, these are the features of the token. Otherwise, they
    are the entries of the query or key.

    Raises:
        ValueError: If there are fewer than two.
    """
    size = dim if kernel.features is None else kernel.features.num_features(dim)
    if size < 2:
        hint = "relative='rotary' rotates pairs of features."
        raise wrong_value("kernel", kernel.name, "a kernel of at least 2 features", hint)
    return size
