"""Relative position biases that depend on the distance: exponential decay, ALiBi, KERPLE and T5."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from teka._compat import replace
from teka.checks import POSITIVE_NUMBER, check_name, check_sizes, check_tensor_sizes, is_positive
from teka.errors import wrong_shape, wrong_value
from teka.functional.backends.attention_sums import (
    AttentionFeatures,
    LinearAttentionInputs,
    WeightedSums,
)
from teka.functional.backends.costs import AttentionSizes, Cost, decay_cost
from teka.functional.backends.decay_scan import (
    bidirectional_decay_attention_sums,
    causal_decay_attention_sums,
    grid_decay_attention_sums,
)
from teka.functional.backends.linear import DecodingState, decode_linear_attention
from teka.functional.positions import Positions, round_to_steps
from teka.functional.relative.stationary import (
    SeparableRelativeKernel,
    broadcast_per_head,
    look_up_entries,
)
from teka.functional.shapes import AxisOffsets, LogRelativePerHead
from teka.precision import to_widest_dtype

# Raffel et al. 2020.
NUM_BUCKETS = 32
MAX_DISTANCE = 128.0
# ALiBi computes one slope after the other.
MAX_HEADS = 2**16
KERPLE_FORMS = ("logarithmic", "power")


class DecayRelativeKernel(SeparableRelativeKernel):
    """Base class of attention weights that decay exponentially with the distance along each axis.

    From one token of a sequence to the next, the weights of all earlier keys decay by the same
    factor. Sums over keys can therefore be computed in linear time by a scan over the sequence.
    """

    supports_decoding = True
    requires_unit_steps = True

    @abstractmethod
    def decay_rate(self, axis: int) -> Float[Tensor, "heads"]:
        """Return the decay rate of each head along one axis, per unit of length."""

    def axis_log_weights(self, axis: int, offsets: AxisOffsets) -> LogRelativePerHead:
        return -broadcast_per_head(self.decay_rate(axis), offsets) * offsets.abs()

    def estimate_costs(self, sizes: AttentionSizes, positions: Positions) -> dict[str, Cost]:
        grid = positions.shared_grid
        costs = super().estimate_costs(sizes, positions)
        if grid is None or any(grid.periodic) or (sizes.is_causal and grid.num_axes > 1):
            return costs
        return {"linear": decay_cost(sizes, grid), **costs}

    def weighted_sums(
        self, backend: str, tokens: LinearAttentionInputs, positions: Positions
    ) -> WeightedSums:
        if backend != "linear":
            return super().weighted_sums(backend, tokens, positions)
        grid = positions.shared_grid
        assert grid is not None
        rates = [
            self.decay_rate(axis).to(tokens.value) * grid.spacing[axis]
            for axis in range(grid.num_axes)
        ]
        if tokens.is_causal:
            return causal_decay_attention_sums(tokens, rates[0])
        sums = (
            bidirectional_decay_attention_sums(tokens, rates[0])
            if grid.num_axes == 1
            else grid_decay_attention_sums(tokens, rates, grid)
        )
        # The largest c of a query is 1, for the key at its own position.
        sums = replace(sums, log_peak=torch.zeros_like(sums.denominator))
        return sums.recompute_underflowed(
            tokens, lambda rows: self.log_weight_at(positions.pairwise_offsets(tokens.value, rows))
        )

    def decode_step(
        self, tokens: LinearAttentionInputs, state: DecodingState | None, positions: Positions
    ) -> tuple[WeightedSums, DecodingState]:
        query, key = (
            AttentionFeatures(tokens.query_features),
            AttentionFeatures(tokens.key_features),
        )
        return decode_linear_attention(
            tokens, query, key, state, self.decay_rate(0).to(tokens.value)
        )


@dataclass(frozen=True)
class Decay(DecayRelativeKernel):
    """Attention weights that decay exponentially with the distance, at a learned rate.

        c(Δ) = exp(−Σ_a rate_a |Δ_a|)

    Here |Δ_a| is the distance of query and key along axis a. Each head learns a rate for each axis.
    Causal attention is computed by a scan over the sequence, and bidirectional attention by two
    scans along each axis, one in each direction. Along a periodic axis the shorter distance counts,
    and Toeplitz matrices replace the scans.

    Source: Sun et al. 2023 (RetNet), equation 5, for one direction. Both directions and several
    axes are from this library.

    >>> import torch
    >>> from teka.functional import Decay
    >>> kernel = Decay(torch.log(torch.tensor([[2.0]])))
    >>> kernel.log_weight_at(torch.tensor([[0.0], [1.0], [-3.0]])).exp()
    tensor([[1.0000, 0.5000, 0.1250]])

    Args:
        rate: Rate ≥ 0 per unit of length, shape (heads, axes).

    Raises:
        ValueError: If a rate is negative.
    """

    name = "decay"
    nonnegative_tensors = ("rate",)

    rate: Float[Tensor, "heads axes"]

    @classmethod
    def with_initial_parameters(cls, *, num_axes: int, heads: int) -> "Decay":
        """Create exponential decay that starts training with the slopes of `Alibi` as its rates."""
        check_tensor_sizes({"num_axes": num_axes, "heads": heads})
        return cls(Alibi.with_initial_parameters(heads=heads).slope[:, None].repeat(1, num_axes))

    def decay_rate(self, axis: int) -> Float[Tensor, "heads"]:
        return self.rate[:, axis]


@dataclass(frozen=True)
class Alibi(DecayRelativeKernel):
    """Attention with linear biases (ALiBi), which lower the score in proportion to the distance.

    The bias of the attention score is −m ‖Δ‖₁, where ‖Δ‖₁ is the Manhattan distance of query and
    key, and m is a fixed slope of each head. The result equals that of `Decay` with the same rate
    for all axes.

    Source: Press et al. 2022, §3, in both directions. The Manhattan distance on several axes is
    from this library.

    >>> import torch
    >>> from teka.functional import Alibi
    >>> kernel = Alibi.with_initial_parameters(heads=4)
    >>> kernel.slope
    tensor([0.2500, 0.0625, 0.0156, 0.0039])
    >>> kernel.log_weight_at(torch.tensor([[3.0, -5.0]])).flatten()  # −m (3 + 5)
    tensor([-2.0000, -0.5000, -0.1250, -0.0312])

    Args:
        slope: m ≥ 0 per unit of length, shape (heads,). `with_initial_parameters` sets the slopes
            of the paper.

    Raises:
        ValueError: If a slope is negative.
    """

    name = "alibi"
    nonnegative_tensors = ("slope",)
    fixed_tensors = ("slope",)

    slope: Float[Tensor, "heads"]

    @classmethod
    def with_initial_parameters(cls, *, heads: int) -> "Alibi":
        """Create ALiBi position biases with the slopes of the paper, 2^(−8h/H) for h = 1, …, H.

        Here H is the number of heads. If it is not a power of two, the slopes are those for the
        next lower power of two, followed by slopes in between.
        """
        check_sizes({"heads": heads}, most=MAX_HEADS)
        lower = 2 ** math.floor(math.log2(heads))
        exponents = [8 * head / lower for head in range(1, lower + 1)]
        exponents += [4 * head / lower for head in range(1, 2 * (heads - lower), 2)]
        return cls(2.0 ** -torch.tensor(exponents))

    @classmethod
    def make_random_example(cls, generator: Generator, *, heads: int, **sizes: Any) -> "Alibi":
        """Create ALiBi position biases with the slopes of the paper, which are not random."""
        return cls(cls.with_initial_parameters(heads=heads).slope.double())

    def decay_rate(self, axis: int) -> Float[Tensor, "heads"]:
        return self.slope


@dataclass(frozen=True)
class Kerple(SeparableRelativeKernel):
    """The relative position bias of KERPLE, a learned function of the distance of query and key.

    The bias is added to the attention score. With the distance |Δ_a| along axis a, it is

        −Σ_a w_a log(1 + b_a |Δ_a|)   (logarithmic form)
        −Σ_a w_a |Δ_a|^b_a            (power form)

    Each head learns its own w and b. The bias is conditionally positive definite, in the power form
    for b ≤ 2.

    Source: Chi et al. 2022 (KERPLE), on one axis. The sum over axes is from this library.

    >>> import torch
    >>> from teka.functional import Kerple
    >>> kernel = Kerple(weight=torch.tensor([[1.0]]), bend=torch.tensor([[1.0]]))
    >>> kernel.log_weight_at(torch.tensor([[0.0], [1.0], [9.0], [99.0]])).exp()  # 1 / (1 + |Δ|)
    tensor([[1.0000, 0.5000, 0.1000, 0.0100]])

    Args:
        weight: w ≥ 0, shape (heads, axes).
        bend: b ≥ 0, shape (heads, axes), per unit of length for the logarithmic form.
        form: "logarithmic" or "power".

    Raises:
        ValueError: If `weight` or `bend` is negative, or the form is unknown.
    """

    name = "kerple"
    nonnegative_tensors = ("weight", "bend")

    weight: Float[Tensor, "heads axes"]
    bend: Float[Tensor, "heads axes"]
    form: str = KERPLE_FORMS[0]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("form", self.form, KERPLE_FORMS)

    @classmethod
    def with_initial_parameters(
        cls, *, num_axes: int, heads: int, form: str = KERPLE_FORMS[0]
    ) -> "Kerple":
        """Create the KERPLE position bias with uniform random parameters, as in the authors' code.

        The parameters w are between 0 and 2, and the parameters b are between 0 and 1.
        """
        check_tensor_sizes({"num_axes": num_axes, "heads": heads})
        weight, bend = torch.rand(2, heads, num_axes).clamp_min(1e-2)
        return cls(2 * weight, bend, form)

    @property
    def constraints(self) -> dict[str, str]:
        return {"weight": "positive", "bend": "below 2" if self.form == "power" else "positive"}

    def axis_log_weights(self, axis: int, offsets: AxisOffsets) -> LogRelativePerHead:
        weight = broadcast_per_head(self.weight[:, axis], offsets)
        bend = broadcast_per_head(self.bend[:, axis], offsets)
        distance = offsets.abs()
        if self.form == "logarithmic":
            return -weight * torch.log1p(bend * distance)
        # At 0 the power has no finite gradient with respect to its exponent.
        is_zero = distance == 0
        return (-weight * distance.masked_fill(is_zero, 1.0) ** bend).masked_fill(is_zero, 0.0)


@dataclass(frozen=True)
class T5Bias(SeparableRelativeKernel):
    """The relative position bias of T5, with one learned value for each range of distances.

    The ranges are called buckets. Half of them are for keys after the query, the other half for all
    other keys. Within each half, the first half of the buckets contain one distance each: 0, 1, and
    so on. The other buckets contain ranges whose limits grow in a geometric sequence up to
    `max_distance`. The last bucket also contains all larger distances. On a grid, the biases of all
    axes are added.

    Source: Raffel et al. 2020, §2.1, and its code, on one axis. The sum over axes is from this
    library.

    >>> import torch
    >>> from teka.functional import T5Bias
    >>> kernel = T5Bias(torch.zeros(1, 1, 16), max_distance=64.0)
    >>> offsets = torch.tensor([0.0, 1.0, 3.0, 7.0, 8.0, 64.0, 999.0, -1.0, -64.0])
    >>> kernel.compute_bucket_indices(offsets)
    tensor([ 0,  1,  3,  4,  5,  7,  7,  9, 15])

    Args:
        tables: Biases, shape (heads, axes, buckets). The number of buckets is a multiple of 4.
        max_distance: Distance, in units, from which all keys are in the last bucket. It is larger
            than a quarter of the number of buckets.
        unit: Length of a unit > 0 in physical units. Distances are rounded to whole units.

    Raises:
        ValueError: If an argument is out of range.
    """

    name = "t5"
    example_sizes: ClassVar[dict[str, int]] = {"buckets": 12}

    tables: Float[Tensor, "heads axes buckets"]
    max_distance: float = MAX_DISTANCE
    unit: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        num_buckets = self.tables.shape[-1]
        if num_buckets % 4:
            raise wrong_shape("tables", self.tables.shape, "(heads, axes, a multiple of 4 buckets)")
        if not (is_positive(self.max_distance) and self.max_distance > num_buckets // 4):
            expected = f"a finite number above {num_buckets // 4}, a quarter of the buckets"
            raise wrong_value("max_distance", self.max_distance, expected)
        if not is_positive(self.unit):
            raise wrong_value("unit", self.unit, POSITIVE_NUMBER)

    @classmethod
    def with_initial_parameters(
        cls,
        *,
        num_axes: int,
        heads: int,
        num_buckets: int = NUM_BUCKETS,
        max_distance: float = MAX_DISTANCE,
    ) -> "T5Bias":
        """Create T5 position biases of 0."""
        check_tensor_sizes({"num_axes": num_axes, "heads": heads, "num_buckets": num_buckets})
        return cls(torch.zeros(heads, num_axes, num_buckets), max_distance)

    @classmethod
    def make_random_example(cls, generator: Generator, **sizes: Any) -> "T5Bias":
        """Create a T5 position bias with random values for 12 buckets, up to a distance of 6."""
        return replace(super().make_random_example(generator, **sizes), max_distance=6.0)

    def compute_bucket_indices(self, offsets: AxisOffsets) -> Int[Tensor, "*pairs"]:
        """Return the index of the bucket, a range of distances, that contains each offset."""
        num_per_side = self.tables.shape[-1] // 2
        num_exact = num_per_side // 2
        steps = round_to_steps(to_widest_dtype(offsets).abs(), self.unit)
        log_ratio = torch.log(steps.clamp_min(num_exact) / num_exact)
        share = log_ratio / math.log(self.max_distance / num_exact)
        far_bucket = num_exact + torch.floor(share * (num_per_side - num_exact) + 1e-9)
        bucket = torch.where(steps < num_exact, steps, far_bucket.clamp_max(num_per_side - 1))
        is_after = (offsets < 0) & (steps > 0)
        return (bucket + num_per_side * is_after).long()

    def axis_log_weights(self, axis: int, offsets: AxisOffsets) -> LogRelativePerHead:
        return look_up_entries(
            self.tables[:, axis].to(offsets), self.compute_bucket_indices(offsets)
        )
