"""Kernels that fall with the distance along every axis: exponentially, slowly, or as a learned bias of its bucket."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from teka._compat import replace
from teka.checks import (
    POSITIVE_NUMBER,
    check_name,
    check_nonnegative,
    check_sizes,
    check_tensor,
    check_tensor_sizes,
    is_positive,
)
from teka.errors import wrong_shape, wrong_value
from teka.functional.backends import Cost, FeatureInputs, WeightedSums
from teka.functional.backends.decay_scan import (
    causal_decay,
    decay_cost,
    decay_step,
    grid_decay,
    line_decay,
)
from teka.functional.backends.linear import DecodingState, Sizes
from teka.functional.kernels.base import Kernel
from teka.functional.positions import Positions, check_heads_and_axes, whole_steps
from teka.functional.relative.stationary import SeparableRelative
from teka.functional.shapes import AxisOffsets, LogRelativePerHead
from teka.precision import to_widest_dtype

NUM_BUCKETS = 32  # Raffel et al. 2020, and so is the distance from which all is in the last one
FARTHEST = 128.0
MOST_HEADS = 2**16  # of slopes that are made one by one
KERPLE_FORMS = ("logarithmic", "power")


class DecayRelative(SeparableRelative):
    """log c(Δ) = −Σ_a r_a |Δ_a|: what lies behind a cell is what lay behind the one before, times exp(−r)."""

    supports_decoding: ClassVar[bool] = True
    requires_unit_steps: ClassVar[bool] = True

    @abstractmethod
    def axis_rate(self, axis: int) -> Float[Tensor, "heads"]:
        """r_a of every head."""

    def axis_log_kernel(self, axis: int, offsets: AxisOffsets) -> LogRelativePerHead:
        return -per_head(self.axis_rate(axis), offsets) * offsets.abs()

    def costs(self, sizes: Sizes, positions: Positions) -> dict[str, Cost]:
        """Of scans along every axis of one grid, of which none is periodic; causally, along a line."""
        grid = positions.shared_grid
        fits = (
            grid is not None
            and not any(grid.periodic)
            and (grid.num_axes == 1 or not sizes.is_causal)
        )
        scans = {"linear": decay_cost(sizes, grid)} if grid is not None and fits else {}
        return {**scans, **super().costs(sizes, positions)}

    def sums(self, backend: str, tokens: FeatureInputs, positions: Positions) -> WeightedSums:
        if backend != "linear":
            return super().sums(backend, tokens, positions)
        grid = positions.shared_grid
        assert grid is not None
        rates = [
            self.axis_rate(axis).to(tokens.value) * grid.spacing[axis]
            for axis in range(grid.num_axes)
        ]
        if tokens.is_causal:
            return causal_decay(tokens, rates[0])
        sums = (
            line_decay(tokens, rates[0]) if grid.num_axes == 1 else grid_decay(tokens, rates, grid)
        )
        # The largest c of a row is that of the token itself, 1.
        sums = replace(sums, log_peak=torch.zeros_like(sums.denominator))
        return sums.without_underflow(
            tokens, lambda rows: self.log_at(positions.offsets_like(tokens.value, rows))
        )

    def step(
        self, tokens: FeatureInputs, state: DecodingState | None, positions: Positions
    ) -> tuple[WeightedSums, DecodingState]:
        return decay_step(tokens, state, self.axis_rate(0).to(tokens.value))


@dataclass(frozen=True)
class Decay(DecayRelative):
    """c(Δ) = Π_a λ_a^|Δ_a| with λ = exp(−rate): linear by two scans an axis, and causally a state that decays.

    Along an axis that is periodic |Δ| is the shorter way round, and sums go by matrices. Source: Sun et al. 2023
    (RetNet), equation 5, in one direction; both directions and several axes are this library's.

    >>> import torch
    >>> from teka.functional import Decay
    >>> half_life = Decay(torch.log(torch.tensor([[2.0]])))
    >>> half_life.log_at(torch.tensor([[0.0], [1.0], [-3.0]])).exp()
    tensor([[1.0000, 0.5000, 0.1250]])

    Args:
        rate: r ≥ 0 per unit of length, shape (heads, axes); a ValueError if negative.
    """

    name: ClassVar[str] = "decay"

    rate: Float[Tensor, "heads axes"]

    def __post_init__(self) -> None:
        check_tensor("rate", self.rate, "heads", "axes")
        check_nonnegative("rate", self.rate)

    @classmethod
    def initial(cls, *, num_axes: int, heads: int) -> "Decay":
        """The slopes of `Alibi` as rates of every axis."""
        check_tensor_sizes({"num_axes": num_axes, "heads": heads})
        return cls(Alibi.of_heads(heads).slope[:, None].repeat(1, num_axes))

    @property
    def constraints(self) -> dict[str, str]:
        return {"rate": "positive"}

    @classmethod
    def draw(
        cls, generator: Generator, *, heads: int, dim: int, num_axes: int, kernel: str | Kernel
    ) -> "Decay":
        """Rates from 0.1 to 0.6."""
        return cls(
            0.1 + 0.5 * torch.rand(heads, num_axes, generator=generator, dtype=torch.float64)
        )

    def check(self, *, heads: int, dim: int, num_axes: int, kernel: Kernel) -> None:
        check_heads_and_axes("rate", self.rate, heads, num_axes)

    def axis_rate(self, axis: int) -> Float[Tensor, "heads"]:
        return self.rate[:, axis]


@dataclass(frozen=True)
class Alibi(DecayRelative):
    """log c(Δ) = −m ‖Δ‖₁ with a slope m for each head: `Decay` with one rate for all axes, and so as fast.

    Source: Press et al. 2022, §3, with |i − j|, on more axes the Manhattan distance.

    >>> import torch
    >>> from teka.functional import Alibi
    >>> Alibi.of_heads(4).slope
    tensor([0.2500, 0.0625, 0.0156, 0.0039])
    >>> Alibi.of_heads(4).log_at(torch.tensor([[3.0, -5.0]])).flatten()  # −m (3 + 5)
    tensor([-2.0000, -0.5000, -0.1250, -0.0312])

    Args:
        slope: m ≥ 0 per unit of length, shape (heads,); a ValueError if negative. `of_heads` has the paper's.
    """

    name: ClassVar[str] = "alibi"
    fixed_tensors: ClassVar[tuple[str, ...]] = ("slope",)

    slope: Float[Tensor, "heads"]

    def __post_init__(self) -> None:
        check_tensor("slope", self.slope, "heads")
        check_nonnegative("slope", self.slope)

    @classmethod
    def of_heads(cls, heads: int) -> "Alibi":
        """m = 2^(−8 h / H), h = 1 … H; where H is no power of two, those of the next lower, and between (the paper)."""
        check_sizes({"heads": heads}, most=MOST_HEADS)
        lower = 2 ** math.floor(math.log2(heads))
        exponents = [8 * head / lower for head in range(1, lower + 1)]
        exponents += [4 * head / lower for head in range(1, 2 * (heads - lower), 2)]
        return cls(2.0 ** -torch.tensor(exponents))

    @classmethod
    def initial(cls, *, heads: int) -> "Alibi":
        """The slopes of the paper, which are not learned."""
        check_tensor_sizes({"heads": heads})
        return cls.of_heads(heads)

    @classmethod
    def draw(
        cls, generator: Generator, *, heads: int, dim: int, num_axes: int, kernel: str | Kernel
    ) -> "Alibi":
        """The paper's slopes."""
        return cls(cls.of_heads(heads).slope.double())

    def check(self, *, heads: int, dim: int, num_axes: int, kernel: Kernel) -> None:
        if self.slope.shape[0] != heads:
            raise wrong_shape("relative.slope", self.slope.shape, f"({heads},) for {heads} heads")

    def axis_rate(self, axis: int) -> Float[Tensor, "heads"]:
        return self.slope


@dataclass(frozen=True)
class Kerple(SeparableRelative):
    """log c(Δ) = −Σ_a w_a log(1 + b_a |Δ_a|), or −Σ_a w_a |Δ_a|^b_a: c > 0 with heavy tails.

    log c is conditionally positive definite, with b ≤ 2 in the second form. Source: Chi et al. 2022 (KERPLE), on one
    axis; the sum over axes is this library's, and keeps that.

    >>> import torch
    >>> from teka.functional import Kerple
    >>> kernel = Kerple(weight=torch.tensor([[1.0]]), bend=torch.tensor([[1.0]]))
    >>> kernel.log_at(torch.tensor([[0.0], [1.0], [9.0], [99.0]])).exp()  # 1 / (1 + |Δ|)
    tensor([[1.0000, 0.5000, 0.1000, 0.0100]])

    Args:
        weight: w ≥ 0, shape (heads, axes); a ValueError if negative.
        bend: b ≥ 0, of the same shape, per unit of length if logarithmic; likewise.
        form: "logarithmic" or "power".
    """

    name: ClassVar[str] = "kerple"

    weight: Float[Tensor, "heads axes"]
    bend: Float[Tensor, "heads axes"]
    form: str = KERPLE_FORMS[0]

    def __post_init__(self) -> None:
        check_tensor("weight", self.weight, "heads", "axes")
        check_tensor("bend", self.bend, *self.weight.shape)
        check_name("form", self.form, KERPLE_FORMS)
        for argument, given in (("weight", self.weight), ("bend", self.bend)):
            check_nonnegative(argument, given)

    @classmethod
    def initial(cls, *, num_axes: int, heads: int, form: str = KERPLE_FORMS[0]) -> "Kerple":
        """Weights uniform in [0, 2) and bends uniform in [0, 1), as in the paper's code."""
        check_tensor_sizes({"num_axes": num_axes, "heads": heads})
        check_name("form", form, KERPLE_FORMS)
        weight, bend = torch.rand(2, heads, num_axes).clamp_min(1e-2)
        return cls(2 * weight, bend, form)

    @property
    def constraints(self) -> dict[str, str]:
        """Bends of the power form stay below 2, where log c is conditionally positive definite."""
        return {"weight": "positive", "bend": "below 2" if self.form == "power" else "positive"}

    @classmethod
    def draw(
        cls, generator: Generator, *, heads: int, dim: int, num_axes: int, kernel: str | Kernel
    ) -> "Kerple":
        """Weights and bends from 0.5 to 1.5."""
        weight, bend = 0.5 + torch.rand(
            2, heads, num_axes, generator=generator, dtype=torch.float64
        )
        return cls(weight, bend)

    def check(self, *, heads: int, dim: int, num_axes: int, kernel: Kernel) -> None:
        check_heads_and_axes("weight", self.weight, heads, num_axes)

    def axis_log_kernel(self, axis: int, offsets: AxisOffsets) -> LogRelativePerHead:
        weight, bend = (per_head(one[:, axis], offsets) for one in (self.weight, self.bend))
        distance = offsets.abs()
        if self.form == "logarithmic":
            return -weight * torch.log1p(bend * distance)
        # At 0 the power has no finite gradient of its exponent.
        is_here = distance == 0
        return (-weight * distance.masked_fill(is_here, 1.0) ** bend).masked_fill(is_here, 0.0)


@dataclass(frozen=True)
class T5(SeparableRelative):
    """log c(Δ) = Σ_a t_a[bucket(Δ_a)]: a learned bias of the direction and, ever more coarsely, of the distance.

    Half of the buckets are for keys before the query or at it, half for keys after it. Of a half one is for each of its
    first distances 0, 1, …, and the others, as many, are of equal ratios up to `farthest`, beyond which all is in the
    last. Source: Raffel et al. 2020, §2.1, and its code, with 32 and 128, on one axis; the sum over axes is ours.

    >>> import torch
    >>> from teka.functional import T5
    >>> kernel = T5(torch.zeros(1, 1, 16), farthest=64.0)  # buckets 0 … 7 up to the query, 8 … 15 after it
    >>> kernel.bucket(torch.tensor([0.0, 1.0, 3.0, 7.0, 8.0, 64.0, 999.0, -1.0, -64.0]))
    tensor([ 0,  1,  3,  4,  5,  7,  7,  9, 15])

    Args:
        tables: t, shape (heads, axes, buckets), a multiple of 4 buckets; else a ValueError.
        farthest: Distance from which all is in the last bucket, in units, above a quarter of the buckets.
        unit: A distance is rounded to a whole number of these, in physical units, above 0; else a ValueError.
    """

    name: ClassVar[str] = "t5"

    tables: Float[Tensor, "heads axes buckets"]
    farthest: float = FARTHEST
    unit: float = 1.0

    def __post_init__(self) -> None:
        check_tensor("tables", self.tables, "heads", "axes", "buckets")
        buckets = self.tables.shape[-1]
        if buckets == 0 or buckets % 4:
            raise wrong_shape("tables", self.tables.shape, "(heads, axes, a multiple of 4 buckets)")
        if not (is_positive(self.farthest) and self.farthest > buckets // 4):
            raise wrong_value(
                "farthest",
                self.farthest,
                f"a finite number above {buckets // 4}, where ratios begin",
            )
        if not is_positive(self.unit):
            raise wrong_value("unit", self.unit, POSITIVE_NUMBER)

    @classmethod
    def initial(
        cls,
        *,
        num_axes: int,
        heads: int,
        num_buckets: int = NUM_BUCKETS,
        farthest: float = FARTHEST,
    ) -> "T5":
        """Entries of 0."""
        check_tensor_sizes({"num_axes": num_axes, "heads": heads, "num_buckets": num_buckets})
        return cls(torch.zeros(heads, num_axes, num_buckets), farthest)

    @classmethod
    def draw(
        cls, generator: Generator, *, heads: int, dim: int, num_axes: int, kernel: str | Kernel
    ) -> "T5":
        """Entries ~ N(0, 1) of 12 buckets up to a distance of 6."""
        return cls(
            torch.randn(heads, num_axes, 12, generator=generator, dtype=torch.float64), farthest=6.0
        )

    def check(self, *, heads: int, dim: int, num_axes: int, kernel: Kernel) -> None:
        check_heads_and_axes("tables", self.tables, heads, num_axes, "buckets")

    def bucket(self, offsets: AxisOffsets) -> Int[Tensor, "*pairs"]:
        """The bucket of every offset, query minus key: the first half for those of at least 0."""
        half = self.tables.shape[-1] // 2
        exact = half // 2
        steps = whole_steps(to_widest_dtype(offsets).abs(), self.unit)
        ratio = torch.log(steps.clamp_min(exact) / exact) / math.log(self.farthest / exact)
        far = exact + torch.floor(ratio * (half - exact) + 1e-9)
        place = torch.where(steps < exact, steps, far.clamp_max(half - 1))
        return (place + half * ((offsets < 0) & (steps > 0))).long()

    def axis_log_kernel(self, axis: int, offsets: AxisOffsets) -> LogRelativePerHead:
        table = self.tables[:, axis].to(offsets)
        return table.index_select(1, self.bucket(offsets).reshape(-1)).reshape(
            len(table), *offsets.shape
        )


def per_head(
    parameter: Float[Tensor, "heads"], offsets: AxisOffsets
) -> Float[Tensor, "heads *ones"]:
    """One number a head, to meet offsets of any shape."""
    return parameter.to(offsets).reshape(-1, *(1,) * offsets.ndim)
