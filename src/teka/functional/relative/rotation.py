"""The rotation kernel (strategy 1), exactly and in the paper's joint form."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Generator, Tensor
from torch.nn.functional import pad

from teka.checks import check_tensor, check_tensor_sizes, is_number
from teka.errors import wrong_value
from teka.functional.kernels.base import Kernel
from teka.functional.positions import Positions, check_heads_and_axes
from teka.functional.relative.stationary import SeparableRelative
from teka.functional.shapes import (
    AxisOffsets,
    Coordinates,
    Keys,
    LogRelativePerHead,
    Queries,
    VectorPair,
)
from teka.precision import widest_dtype

NUM_FREQUENCIES = 4  # Horn et al. 2021, appendix A.2


def initial_frequency(num_frequencies: int) -> Float[Tensor, "scales"]:
    """ω_s = 8^(−s/2) radians per unit of length: 1, .354, .125, .0442 for four (Horn et al. 2021, authors' code)."""
    return 8.0 ** (
        -torch.arange(num_frequencies, dtype=widest_dtype(torch.get_default_device())) / 2
    )


def rotation_scale(dim: int, num_axes: int, num_frequencies: int) -> float:
    """1/√d' with d' = d + 2 · axes · scales, the size of the concatenated vectors (Horn et al. 2021)."""
    return (dim + 2 * num_axes * num_frequencies) ** -0.5


@dataclass(frozen=True)
class Rotation(SeparableRelative):
    """log c(Δ) = scale · Σ_{axis a, s} [α_as cos(ω_s Δ_a) + β_as sin(ω_s Δ_a)].

    Lemma 1: with u(x) = [sin ωx, cos ωx], ⟨u(x) W, u(y)⟩ depends on x − y alone when W = [[α, β], [−β, α]], and then is
    α cos ω(x − y) + β sin ω(x − y). The paper asks it of W_qᵀW_k; with vectors as rows it is W_q W_kᵀ. For

        u(x) W = [α sin ωx − β cos ωx, β sin ωx + α cos ωx],

    ⟨u(x) W, u(y)⟩ = α (sin ωx sin ωy + cos ωx cos ωy) + β (sin ωx cos ωy − cos ωx sin ωy). A sum over axes in the
    exponent is a product of one factor an axis, so the sum over keys is one Toeplitz matrix an axis. On a periodic grid
    Δ is first wrapped into [−P/2, P/2), so that c has the grid's period for any ω.

    Source: Horn et al. 2021, Lemma 1 and §2.3 (strategy 1); the separable form is this library's.

    >>> import math, torch
    >>> from teka.functional import Rotation
    >>> cosine, sine = torch.tensor([[[2.0]]]), torch.tensor([[[1.0]]])
    >>> kernel = Rotation(torch.tensor([math.pi / 2]), cosine, sine)
    >>> kernel.log_at(torch.tensor([[0.0], [1.0], [-1.0], [2.0]])).round(decimals=3)
    tensor([[ 2.,  1., -1., -2.]])

    Args:
        frequency: ω in radians per unit of length, shape (scales,).
        cosine_weight: α, shape (heads, axes, scales).
        sine_weight: β, shape (heads, axes, scales).
        scale: Factor of the sum, a ValueError if negative; the paper's is 1/√d' with d' = d + 2 · axes · scales.
    """

    name: ClassVar[str] = "rotation"
    shared_by_heads: ClassVar[tuple[str, ...]] = ("frequency",)

    frequency: Float[Tensor, "scales"]
    cosine_weight: Float[Tensor, "heads axes scales"]
    sine_weight: Float[Tensor, "heads axes scales"]
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_tensor("frequency", self.frequency, "scales")
        check_tensor("cosine_weight", self.cosine_weight, "heads", "axes", len(self.frequency))
        check_tensor("sine_weight", self.sine_weight, *self.cosine_weight.shape)
        if not (is_number(self.scale) and self.scale >= 0):
            raise wrong_value("scale", self.scale, "a finite number of at least 0")

    @classmethod
    def initial(
        cls,
        *,
        num_axes: int,
        heads: int,
        dim_head: int,
        num_frequencies: int = NUM_FREQUENCIES,
        frequency: Tensor | None = None,
        weight_scale: float = 1.0,
    ) -> "Rotation":
        """α, β ~ N(0, σ²) for every head, axis and scale, and ω = 8^(−s/2) (Horn et al. 2021).

        Args:
            num_axes: Number of axes of the grid.
            heads: Number of heads.
            dim_head: Size of queries and keys, which sets the scale 1/√(d + 2 · axes · scales).
            num_frequencies: Number of scales.
            frequency: ω, shape (scales,). Layers that get the same `torch.nn.Parameter` share it.
            weight_scale: σ ≥ 0. With 0, attention starts without position.
        """
        sizes = {"num_axes": num_axes, "heads": heads, "dim_head": dim_head}
        check_tensor_sizes({**sizes, "num_frequencies": num_frequencies})
        if not (is_number(weight_scale) and weight_scale >= 0):
            raise wrong_value("weight_scale", weight_scale, "a finite number of at least 0")
        if frequency is None:
            frequency = initial_frequency(num_frequencies).to(torch.get_default_dtype())
        check_tensor("frequency", frequency, "scales")
        shape = (heads, num_axes, len(frequency))
        cosine_weight = weight_scale * torch.randn(shape)
        sine_weight = weight_scale * torch.randn(shape)
        scale = rotation_scale(dim_head, num_axes, len(frequency))
        return cls(frequency, cosine_weight, sine_weight, scale)

    @classmethod
    def draw(
        cls, generator: Generator, *, heads: int, dim: int, num_axes: int, kernel: str | Kernel
    ) -> "Rotation":
        """Weights ~ N(0, 1), with the paper's frequencies and scale."""
        shape = (2, heads, num_axes, NUM_FREQUENCIES)
        cosine_weight, sine_weight = torch.randn(shape, generator=generator, dtype=torch.float64)
        scale = rotation_scale(dim, num_axes, NUM_FREQUENCIES)
        return cls(initial_frequency(NUM_FREQUENCIES), cosine_weight, sine_weight, scale)

    def check(self, *, heads: int, dim: int, num_axes: int, kernel: Kernel) -> None:
        check_heads_and_axes(
            "cosine_weight", self.cosine_weight, heads, num_axes, str(len(self.frequency))
        )

    def axis_log_kernel(self, axis: int, offsets: AxisOffsets) -> LogRelativePerHead:
        phase = offsets[..., None] * self.frequency.to(offsets)
        waves = torch.cat([torch.cos(phase), torch.sin(phase)], dim=-1)
        weight = torch.cat([self.cosine_weight[:, axis], self.sine_weight[:, axis]], dim=-1).to(
            offsets
        )
        return self.scale * torch.einsum("hs,...s->h...", weight, waves)

    def extra_softmax_dim(self, positions: Positions) -> int | None:
        """2 · axes · scales, where no axis is periodic: on such a one c is a function of the wrapped offset."""
        is_lemma = type(self).axis_log_kernel is Rotation.axis_log_kernel
        return None if any(positions.periods) or not is_lemma else 2 * self.cosine_weight[0].numel()

    def softmax_vectors(
        self, query: Queries, key: Keys, positions: Positions, *, scale: float
    ) -> VectorPair | None:
        return (
            None
            if self.extra_softmax_dim(positions) is None
            else self.concatenate(query, key, positions, scale=scale)
        )

    def concatenate(
        self, query: Queries, key: Keys, positions: Positions, *, scale: float
    ) -> VectorPair:
        """√scale · q and √scale · k with waves of their positions, 0 for none: the product is scale · qᵀk + log c."""
        alpha, beta = (
            weight.to(query)[:, None] for weight in (self.cosine_weight, self.sine_weight)
        )
        sine, cosine = at_key = self._waves(positions.places(query.device), query.dtype)
        if positions.key is not None:
            at_key = self._waves(positions.key.places(key.device), key.dtype)
        rotated = torch.cat([alpha * sine - beta * cosine, beta * sine + alpha * cosine], dim=-1)
        joined = []
        for vectors, waves in ((query, rotated), (key, torch.cat(at_key, dim=-1))):
            waves = pad(
                waves.flatten(-2) * math.sqrt(self.scale), (0, 0, positions.num_prefix_tokens, 0)
            )
            waves = waves.expand(*vectors.shape[:-1], waves.shape[-1])
            joined.append(torch.cat([vectors * math.sqrt(scale), waves], dim=-1))
        return joined[0], joined[1]

    def _waves(self, places: Coordinates, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """sin ωx and cos ωx of every position, axis and scale, (B or 1, 1, L, axes, scales)."""
        phase = places[..., None] * self.frequency.to(places)
        phase = phase[:, None] if phase.ndim == 4 else phase[None, None]
        return torch.sin(phase).to(dtype), torch.cos(phase).to(dtype)


@dataclass(frozen=True)
class RotationJoint(Rotation):
    """The rotation kernel by concatenation: random features of [q; u(x_i) W] and [k; u(x_j)] together.

    In expectation over the draws it equals `Rotation`, whose parameters it has, with the softmax kernel. For one draw w
    it does not: exp(wᵀ[q; u(x_i)W]) · exp(wᵀ[k; u(x_j)]) depends on u(x_i)W + u(x_j) and not on x_i − x_j, so a shift
    changes the output by as much as the estimator's error. For parity with Horn et al. 2021, §2.3 (strategy 1).

    >>> import torch
    >>> from teka.functional import RotationJoint, attention
    >>> tokens, places = torch.randn(3, 1, 1, 6, 4), torch.arange(6.0)[:, None]
    >>> joint = RotationJoint(torch.ones(1), torch.ones(1, 1, 1), torch.ones(1, 1, 1))
    >>> at = lambda where: {"relative": joint, "positions": where}
    >>> estimate, moved = (attention(*tokens, kernel="positive", **at(where)) for where in (places, places + 1))
    >>> exact, exact_moved = (attention(*tokens, kernel="softmax", **at(where)) for where in (places, places + 1))
    >>> torch.allclose(exact, exact_moved, atol=1e-5), torch.allclose(estimate, moved, atol=1e-5)
    (True, False)
    """

    name: ClassVar[str] = "rotation_joint"
    equivariance: ClassVar[Literal["exact", "in expectation"]] = "in expectation"
    appends_features: ClassVar[bool] = True
    supports_decoding: ClassVar[bool] = True

    def check(self, *, heads: int, dim: int, num_axes: int, kernel: Kernel) -> None:
        """Check that the weights fit, and that the kernel estimates softmax: only exp turns sums into products."""
        super().check(heads=heads, dim=dim, num_axes=num_axes, kernel=kernel)
        if not kernel.estimates_softmax:
            expected = "softmax or random features of it with relative='rotation_joint'; relative='rotation' takes all"
            raise wrong_value("kernel", kernel.name, expected)

    @property
    def num_position_features(self) -> int:
        return 2 * self.cosine_weight[0].numel()

    def for_positions(self, positions: Positions) -> "RotationJoint":
        """The kernel itself; a ValueError on a periodic axis, as there are no absolute positions on a torus."""
        if any(positions.periods):
            came = positions.grid or positions.of_keys.grid
            raise wrong_value("grid", came, "no periodic axis with relative='rotation_joint'")
        return self
