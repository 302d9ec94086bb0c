"""Position biases that are learned sums of sinusoids of the offset (relative kernel "rotation").

This is strategy 1 of Horn et al. 2021. The kernel is called "rotation" because the weights of the
sinusoids form scaled rotation matrices.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Generator, Tensor
from torch.nn.functional import pad

from teka._compat import replace
from teka.checks import check_tensor, check_tensor_sizes, is_number
from teka.errors import wrong_value
from teka.functional.kernels.content_kernel import ContentKernel
from teka.functional.positions import Positions
from teka.functional.relative.stationary import SeparableRelativeKernel
from teka.functional.shapes import (
    AxisOffsets,
    Coordinates,
    Features,
    Keys,
    LogRelativePerHead,
    Queries,
    Tokens,
    VectorPair,
)
from teka.precision import widest_dtype

# Horn et al. 2021, appendix A.2.
NUM_FREQUENCIES = 4


def initial_frequencies(num_frequencies: int) -> Float[Tensor, "scales"]:
    """Return the frequencies 8^(−s/2) for s = 0, 1, …, from which the sinusoids start training.

    They are in radians per unit of length.

    Source: Horn et al. 2021, authors' code.
    """
    dtype = widest_dtype(torch.get_default_device())
    return 8.0 ** (-torch.arange(num_frequencies, dtype=dtype) / 2)


def attention_scale_with_sinusoids(dim: int, num_axes: int, num_frequencies: int) -> float:
    """Return the scale of attention scores if sinusoids are appended to queries and keys.

    The scale is 1/√d' for queries of size d' = dim + 2 · num_axes · num_frequencies, because a sine
    and a cosine are appended for each frequency and axis.
    """
    return (dim + 2 * num_axes * num_frequencies) ** -0.5


@dataclass(frozen=True)
class SinusoidalBias(SeparableRelativeKernel):
    """A position bias of attention scores that is a learned sum of sinusoids of the offset.

    The bias is the logarithm of a weight c(Δ) that multiplies the attention weight:

        log c(Δ) = scale · Σ_{a, s} [α_as cos(ω_s Δ_a) + β_as sin(ω_s Δ_a)]

    Here Δ_a is the offset of query and key along axis a, and ω_s is the frequency of sinusoid s.
    Each head learns its own α and β. On a grid, attention is computed one axis at a time, because
    c(Δ) is a product over the axes. Along a periodic axis, the shorter way around counts, so that
    the bias is periodic for any ω.

    The name comes from Lemma 1 of the paper: for u(x) = [sin ωx, cos ωx], the inner product ⟨u(x)
    W, u(y)⟩ depends on x − y alone if W = [[α, β], [−β, α]], a scaled rotation matrix. Then

        u(x) W = [α sin ωx − β cos ωx, β sin ωx + α cos ωx],
        ⟨u(x) W, u(y)⟩ = α cos ω(x − y) + β sin ω(x − y).

    The paper requires this form of W_qᵀW_k. For vectors that are rows it is W_q W_kᵀ.

    Source: Horn et al. 2021, Lemma 1 and §2.3 (strategy 1). The separable form is from this
    library.

    >>> import math, torch
    >>> from teka.functional import SinusoidalBias
    >>> cosine, sine = torch.tensor([[[2.0]]]), torch.tensor([[[1.0]]])
    >>> kernel = SinusoidalBias(torch.tensor([math.pi / 2]), cosine, sine)
    >>> kernel.log_weight_at(torch.tensor([[0.0], [1.0], [-1.0], [2.0]])).round(decimals=3)
    tensor([[ 2.,  1., -1., -2.]])

    Args:
        frequency: ω in radians per unit of length, shape (scales,).
        cosine_weight: α, shape (heads, axes, scales).
        sine_weight: β, shape (heads, axes, scales).
        scale: Factor of the sum ≥ 0. In the paper it is 1/√d' with d' = d + 2 · axes · scales.

    Raises:
        ValueError: If the scale is negative.
    """

    name = "rotation"
    example_sizes: ClassVar[dict[str, int]] = {"scales": NUM_FREQUENCIES}

    frequency: Float[Tensor, "scales"]
    cosine_weight: Float[Tensor, "heads axes scales"]
    sine_weight: Float[Tensor, "heads axes scales"]
    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (is_number(self.scale) and self.scale >= 0):
            raise wrong_value("scale", self.scale, "a finite number of at least 0")

    @classmethod
    def with_initial_parameters(
        cls,
        *,
        num_axes: int,
        heads: int,
        dim_head: int,
        num_frequencies: int = NUM_FREQUENCIES,
        frequency: Tensor | None = None,
        weight_scale: float = 1.0,
    ) -> "SinusoidalBias":
        """Create a position bias whose sinusoids have random weights, for the start of training.

        The weights α and β are normally distributed, and the frequencies are those of the paper.

        Args:
            num_axes: Number of axes of the grid.
            heads: Number of heads.
            dim_head: Size of queries and keys, which sets the scale 1/√(d + 2 · axes · scales).
            num_frequencies: Number of frequencies, unless `frequency` is given.
            frequency: ω, shape (scales,). Layers that get the same `torch.nn.Parameter` share it.
            weight_scale: Standard deviation ≥ 0 of the weights. With 0, attention does not depend
                on positions at first.
        """
        sizes = {"num_axes": num_axes, "heads": heads, "dim_head": dim_head}
        check_tensor_sizes({**sizes, "num_frequencies": num_frequencies})
        if not (is_number(weight_scale) and weight_scale >= 0):
            raise wrong_value("weight_scale", weight_scale, "a finite number of at least 0")
        if frequency is None:
            frequency = initial_frequencies(num_frequencies).to(torch.get_default_dtype())
        check_tensor("frequency", frequency, "scales")
        shape = (heads, num_axes, len(frequency))
        cosine_weight = weight_scale * torch.randn(shape)
        sine_weight = weight_scale * torch.randn(shape)
        scale = attention_scale_with_sinusoids(dim_head, num_axes, len(frequency))
        return cls(frequency, cosine_weight, sine_weight, scale)

    @classmethod
    def make_random_example(cls, generator: Generator, **sizes: Any) -> "SinusoidalBias":
        """Create a position bias with random weights and the frequencies of Horn et al. 2021."""
        scale = attention_scale_with_sinusoids(sizes["dim"], sizes["num_axes"], NUM_FREQUENCIES)
        kernel = super().make_random_example(generator, **sizes)
        return replace(kernel, frequency=initial_frequencies(NUM_FREQUENCIES), scale=scale)

    def axis_log_weights(self, axis: int, offsets: AxisOffsets) -> LogRelativePerHead:
        phase = offsets[..., None] * self.frequency.to(offsets)
        waves = torch.cat([torch.cos(phase), torch.sin(phase)], dim=-1)
        weight = torch.cat([self.cosine_weight[:, axis], self.sine_weight[:, axis]], dim=-1)
        return self.scale * torch.einsum("hs,...s->h...", weight.to(offsets), waves)

    def num_appended_entries(self, positions: Positions) -> int | None:
        # On a periodic axis, c is a function of the wrapped offset, which is not a difference of
        # positions.
        return None if any(positions.periods) else 2 * self.cosine_weight[0].numel()

    def convert_to_softmax_vectors(
        self, query: Queries, key: Keys, positions: Positions, *, scale: float
    ) -> VectorPair | None:
        if self.num_appended_entries(positions) is None:
            return None
        return self.append_sinusoids(query, key, positions, scale=scale)

    def append_sinusoids(
        self, query: Queries, key: Keys, positions: Positions, *, scale: float
    ) -> VectorPair:
        """Append sinusoids of the positions to queries and keys, for softmax attention.

        The inner product of the longer vectors of a query and a key is their attention score,
        including the position bias. Zeros are appended to tokens without a position.
        """
        alpha = self.cosine_weight.to(query)[:, None]
        beta = self.sine_weight.to(query)[:, None]
        sine, cosine = key_waves = self._sines_and_cosines(
            positions.coordinates(query.device), query.dtype
        )
        if positions.key is not None:
            key_waves = self._sines_and_cosines(positions.key.coordinates(key.device), key.dtype)
        query_waves = [alpha * sine - beta * cosine, beta * sine + alpha * cosine]
        vectors = []
        for content, waves in ((query, query_waves), (key, key_waves)):
            waves = torch.cat(tuple(waves), dim=-1).flatten(-2) * math.sqrt(self.scale)
            vectors.append(append_position_features(content * math.sqrt(scale), waves, positions))
        return vectors[0], vectors[1]

    def _sines_and_cosines(
        self, coordinates: Coordinates, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Return the sines and cosines of ωx for each frequency ω and token coordinate x."""
        phase = coordinates[..., None] * self.frequency.to(coordinates)
        phase = phase[:, None] if phase.ndim == 4 else phase[None, None]
        return torch.sin(phase).to(dtype), torch.cos(phase).to(dtype)


def append_position_features(vectors: Tokens, features: Tensor, positions: Positions) -> Features:
    """Append features of the position to query or key vectors.

    Zeros are appended to tokens without a position, such as a class token. All heads and samples
    may share the features.
    """
    features = pad(features, (0, 0, positions.num_prefix_tokens, 0))
    return torch.cat([vectors, features.expand(*vectors.shape[:-1], -1)], dim=-1)


@dataclass(frozen=True)
class JointSinusoidalBias(SinusoidalBias):
    """A position bias that appends sinusoids of the position to queries and keys.

    With the softmax kernel, attention is the same as with `SinusoidalBias`. With random features,
    it is the same only on average over random draws. A shift of all positions then changes the
    output by about the error of the random features. This is the original form of the paper.

    The similarity function (content kernel) takes the longer vectors [q; u(x_i) W] and [k; u(x_j)],
    where u(x) contains sinusoids of the position x, and W the learned weights. For a random vector
    w of a single draw, the product exp(wᵀ[q; u(x_i) W]) · exp(wᵀ[k; u(x_j)]) depends on u(x_i) W +
    u(x_j) instead of x_i − x_j. Therefore a shift changes the output.

    Source: Horn et al. 2021, §2.3 (strategy 1).

    >>> import torch
    >>> from teka.functional import JointSinusoidalBias, attention
    >>> tokens, positions = torch.randn(3, 1, 1, 6, 4), torch.arange(6.0)[:, None]
    >>> joint = JointSinusoidalBias(torch.ones(1), torch.ones(1, 1, 1), torch.ones(1, 1, 1))
    >>> for kernel in ("softmax", "positive"):
    ...     output = attention(*tokens, kernel=kernel, relative=joint, positions=positions)
    ...     shifted = attention(*tokens, kernel=kernel, relative=joint, positions=positions + 1)
    ...     print(kernel, torch.allclose(shifted, output, atol=1e-5))
    softmax True
    positive False

    Args:
        frequency: As for `SinusoidalBias`.
        cosine_weight: As for `SinusoidalBias`.
        sine_weight: As for `SinusoidalBias`.
        scale: As for `SinusoidalBias`.

    Raises:
        ValueError: The content kernel does not estimate softmax, or an axis is periodic.
    """

    name = "rotation_joint"
    equivariance = "in expectation"
    appends_features = True
    supports_decoding = True

    def check_kernel_and_positions(self, *, kernel: ContentKernel, **sizes: int) -> None:
        super().check_kernel_and_positions(kernel=kernel, **sizes)
        # The sum of the content and the position term becomes a product of weights for exp only.
        if not kernel.estimates_softmax:
            hint = "relative='rotation' supports all kernels, relative='rotation_joint' does not."
            raise wrong_value("kernel", kernel.name, "softmax or random features of it", hint)

    @property
    def num_position_features(self) -> int:
        return 2 * self.cosine_weight[0].numel()

    def adapt_to_positions(self, positions: Positions) -> "JointSinusoidalBias":
        """Return the kernel unchanged, or raise an error if an axis is periodic.

        Raises:
            ValueError: If an axis is periodic, because a torus has no absolute positions.
        """
        if any(positions.periods):
            grid = positions.grid or positions.key_positions.grid
            raise wrong_value("grid", grid, "no periodic axis with relative='rotation_joint'")
        return self
