"""What every backend has in common: its cost before, and its sums after."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from teka._compat import ProcessGroup, replace
from teka.execution_mode import ExecutionMode, execution_mode
from teka.functional.shapes import (
    KeyFeatures,
    KeyMask,
    LogScale,
    Outputs,
    Queries,
    QueryFeatures,
    QueryIndices,
    RowFunction,
    Values,
)
from teka.precision import backward_without_autocast

T = TypeVar("T")

BACKENDS = ("auto", "dense", "linear", "toeplitz", "rings", "fft", "windows")
BYTES = 4  # of a number, float32
# A row whose keys have on average so small a c over the row's largest is computed again: a few of them underflow.
UNDERFLOWN = {torch.float32: 1e-25, torch.float64: 1e-290}


@dataclass(frozen=True)
class Rate:
    """Nanoseconds that a backend takes for a call, a head of a sample, a multiply-add, and a byte moved."""

    call: float
    head: float
    multiply_add: float
    byte: float


# Fitted to the times of one thread of a server CPU, forward and with the backward pass, over one to three dimensions:
# `python benchmarks/backends.py --table` holds them against the times.
RATES = {
    "dense": Rate(600_000.0, 0.0, 0.070, 0.041),
    "linear": Rate(650_000.0, 0.0, 0.14, 0.0),
    "toeplitz": Rate(0.0, 350_000.0, 0.041, 0.11),
    "rings": Rate(0.0, 720_000.0, 0.0, 0.027),
    "fft": Rate(0.0, 330_000.0, 0.10, 0.080),
    "windows": Rate(0.0, 700_000.0, 0.14, 0.10),
}
# In place of s of a key that is dropped or not there: below every other, and finite, so that differences are no NaN.
LOWEST_LOG_SCALE = -1e30
# Not measured: on a GPU arithmetic is ahead of memory by more.
ELSEWHERE = Rate(0.0, 0.0, 1.0, 20.0)


@dataclass(frozen=True)
class Cost:
    """Multiply-adds of one head of one sample, forward, and bytes of passes beyond the inputs and the output."""

    multiply_adds: int
    bytes: int
    heads: int = 1  # of all samples, which one call computes

    def work(self, backend: str, device_type: str = "cpu") -> float:
        """Both in one number at the rate of the backend: nanoseconds a head on a CPU, elsewhere of no unit."""
        rate = RATES[backend] if device_type == "cpu" else ELSEWHERE
        fixed = rate.call / self.heads + rate.head
        return fixed + rate.multiply_add * self.multiply_adds + rate.byte * self.bytes


def with_ones(value: Values) -> Float[Tensor, "batch heads keys channels"]:
    """Values with a column of ones, so that one product gives numerators and denominators."""
    return torch.cat([value, value.new_ones(*value.shape[:-1], 1)], dim=-1)


@dataclass(frozen=True)
class FeatureInputs:
    """Queries, their features, features of keys less exp(s), and values, as a fast backend sees them."""

    query: Queries
    query_features: QueryFeatures
    key_features: KeyFeatures
    value: Values
    log_scale: LogScale = None
    key_mask: KeyMask = None
    scale: float = 1.0
    is_causal: bool = False
    group: ProcessGroup | None = None  # over which tokens are divided, these being one process'

    def after(self, first: int) -> "FeatureInputs":
        """The tokens after some first ones."""
        if not first:
            return self
        names = ("query", "query_features", "key_features", "value", "log_scale")
        tensors = {
            name: getattr(self, name)[:, :, first:]
            for name in names
            if getattr(self, name) is not None
        }
        return replace(
            self, **tensors, key_mask=None if self.key_mask is None else self.key_mask[:, first:]
        )


@dataclass(frozen=True)
class WeightedSums:
    """Σ_j weight_ij v_j and Σ_j weight_ij, both divided by exp(log_peak_i) to stay in range; None divides nothing."""

    numerator: Float[Tensor, "batch heads queries dim"]
    denominator: Float[Tensor, "batch heads queries"]
    log_peak: Float[Tensor, "#batch #heads #queries"] | None = None

    @classmethod
    def of_channels(cls, mixed: Tensor, log_peak: Tensor | None = None) -> "WeightedSums":
        """The sums of values `with_ones`."""
        return cls(mixed[..., :-1], mixed[..., -1], log_peak)

    def __add__(self, other: "WeightedSums") -> "WeightedSums":
        if self.log_peak is None and other.log_peak is None:
            return WeightedSums(
                self.numerator + other.numerator, self.denominator + other.denominator
            )
        zero = torch.zeros((), dtype=self.numerator.dtype, device=self.numerator.device)
        peaks = [zero if sums.log_peak is None else sums.log_peak for sums in (self, other)]
        peak = torch.maximum(*peaks).detach()
        mine, theirs = (torch.exp(part - peak) for part in peaks)
        return WeightedSums(
            self.numerator * mine[..., None] + other.numerator * theirs[..., None],
            self.denominator * mine + other.denominator * theirs,
            peak,
        )

    def over(self, count: "WeightedSums") -> "WeightedSums":
        """The same numerators over the denominators of other sums."""
        zero = torch.zeros((), dtype=self.numerator.dtype, device=self.numerator.device)
        mine, theirs = (zero if sums.log_peak is None else sums.log_peak for sums in (self, count))
        return WeightedSums(self.numerator * torch.exp(mine - theirs)[..., None], count.denominator)

    def divide(self, *, nonnegative: bool) -> Outputs:
        """The weighted mean; where no weight can be negative, a row that underflows altogether gives 0 and not NaN."""
        denominator = self.denominator
        empty = (
            denominator < torch.finfo(denominator.dtype).tiny if nonnegative else denominator == 0
        )
        # The numerator of such a row is 0 too. Divided by 1 it has a finite gradient; by a tiny number it has none.
        return self.numerator / denominator.masked_fill(empty, 1.0)[..., None]

    def without_underflow(self, tokens: FeatureInputs, log_rows: RowFunction) -> "WeightedSums":
        """The sums with rows made again whose largest c is that of a masked key, unless a transform records them.

        Where the keys near the largest c are masked, what is left of a sharp kernel may have underflowed.
        """
        mode = execution_mode(tokens.query_features, tokens.key_features, tokens.value)
        if mode is not ExecutionMode.EAGER:
            return self
        with torch.no_grad():
            # Measured without the features' signs: a sum of both signs may be negative, and no row would lie below it.
            without = (
                tokens.query_features.abs() @ tokens.key_features.abs().sum(dim=2)[..., None]
            )[..., 0]
            rows = rows_of(self.denominator.abs() < UNDERFLOWN[tokens.value.dtype] * without)
        return self.with_rows_again(rows, log_rows, tokens)

    def with_rows_again(
        self, rows: QueryIndices, log_rows: RowFunction, tokens: FeatureInputs
    ) -> "WeightedSums":
        """The sums with unresolved rows made anew from log c of every pair, over the largest among keys that count."""
        if len(rows) == 0:
            return self
        counts = (tokens.key_features != 0).any(dim=-1)[:, :, None]
        log_pairs = log_rows(rows)[None].masked_fill(~counts, -torch.inf)
        peak = log_pairs.detach().amax(dim=-1)
        peak = peak.masked_fill(peak == -torch.inf, 0.0)
        pairs = tokens.query_features[:, :, rows] @ tokens.key_features.transpose(-2, -1)
        again = (pairs * torch.exp(log_pairs - peak[..., None])) @ with_ones(tokens.value)
        assert self.log_peak is not None
        return WeightedSums(
            self.numerator.index_copy(2, rows, again[..., :-1]),
            self.denominator.index_copy(2, rows, again[..., -1]),
            self.log_peak.expand(self.denominator.shape).index_copy(2, rows, peak),
        )


def rows_of(unresolved: Tensor) -> QueryIndices:
    """Queries that are unresolved in any sample and head, of (batch, heads, queries); on "meta" none."""
    if unresolved.is_meta:
        return unresolved.new_zeros(0, dtype=torch.long)
    return unresolved.flatten(0, 1).any(dim=0).nonzero().flatten()


def add_prefix(
    sums: WeightedSums,
    tokens: FeatureInputs,
    first: int,
    unplaced: Callable[[Tensor, Tensor, Tensor], WeightedSums],
) -> WeightedSums:
    """Sums of all tokens from those after the first ones, which have no position: `unplaced` gives the other pairs'."""
    if not first:
        return sums
    query_features, key_features, value = tokens.query_features, tokens.key_features, tokens.value
    of_first = unplaced(
        query_features[:, :, first:], key_features[:, :, :first], value[:, :, :first]
    )
    if tokens.key_mask is not None and sums.log_peak is not None:
        is_there = tokens.key_mask[:, None, :first].any(dim=-1, keepdim=True)
        of_first = replace(
            of_first, log_peak=torch.where(is_there, 0.0, LOWEST_LOG_SCALE).to(value.dtype)
        )
    sums = sums + of_first
    prefix = unplaced(query_features[:, :, :first], key_features, value)
    numerator, denominator = (
        torch.cat([getattr(one, name) for one in (prefix, sums)], dim=2)
        for name in ("numerator", "denominator")
    )
    if sums.log_peak is None:
        return WeightedSums(numerator, denominator)
    return WeightedSums(
        numerator, denominator, pad(sums.log_peak.expand(sums.denominator.shape), (first, 0))
    )


class DifferentiableOp(ABC):
    """A map that keeps only its inputs for its derivatives; linear in each by default, and vmap adds to the batch."""

    @abstractmethod
    def value(self, *tensors: Tensor) -> Tensor:
        """The map without derivatives."""

    @abstractmethod
    def gradients(
        self, gradient: Tensor, tensors: Sequence[Tensor], needs: Sequence[bool]
    ) -> Sequence[Tensor | None]:
        """Gradients of the tensors that need one, from that of the value."""

    def tangent(self, tensors: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> Tensor:
        """The forward derivative: one term for each tensor that has a tangent."""
        terms = [
            self.of(*tensors[:at], one, *tensors[at + 1 :])
            for at, one in enumerate(tangents)
            if one is not None
        ]
        return sum(terms[1:], terms[0])

    def mapped(
        self, size: int, in_dims: Sequence[int | None], tensors: Sequence[Tensor]
    ) -> tuple[Tensor, int]:
        """The map over a further dimension of that size, where tensors have it, and its place in the output."""
        stacked = stack_all(size, in_dims, tensors)
        return self.of(*(tensor.flatten(0, 1) for tensor in stacked)).unflatten(0, (size, -1)), 0

    def of(self, *tensors: Tensor) -> Tensor:
        """The map with its derivatives, as far as the caller can take them."""
        if not torch.compiler.is_compiling():
            return _DualForm.apply(self, *tensors)
        # torch.compile cannot trace a Function without gradients, or inside the gradients of another Function.
        has_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        return _Form.apply(self, *tensors) if has_gradient else self.value(*tensors)


def stack_all(size: int, in_dims: Sequence[int | None], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors with the dimension that vmap adds in front, repeated where they have none."""
    pairs = zip(tensors, in_dims, strict=True)
    return [
        one.expand(size, *one.shape) if dim is None else one.movedim(dim, 0) for one, dim in pairs
    ]


class _Form(Function):
    @staticmethod
    def forward(form, *tensors):
        return form.value(*tensors)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.form, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    @backward_without_autocast
    def backward(ctx, *grad_outputs):
        return None, *ctx.form.gradients(
            grad_outputs[0], ctx.saved_tensors, ctx.needs_input_grad[1:]
        )

    @staticmethod
    def vmap(info, in_dims, *args):
        return args[0].mapped(info.batch_size, in_dims[1:], args[1:])


class _DualForm(_Form):
    """The same with a forward derivative, which torch.compile does not take."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        _Form.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def jvp(ctx, *grad_inputs):
        return ctx.form.tangent(ctx.saved_tensors, grad_inputs[1:])


def checkpointed(function: Callable[..., T], *arguments: object) -> T:
    """Return function(*arguments), and compute it again in the backward pass instead of keeping its tensors.

    Under the transforms of torch.func everything is kept. The function must not draw random numbers, because the state
    of the generators is not restored.
    """
    if not torch.is_grad_enabled() or execution_mode() is ExecutionMode.TRANSFORMED:
        return function(*arguments)
    output = checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
    return cast(T, output)


def transposed(tokens: Float[Tensor, "tokens channels"]) -> Float[Tensor, "channels tokens"]:
    """Channels first, each in one piece: by way of a whole matrix, of which torch is many times faster."""
    return tokens.contiguous().T.contiguous()
