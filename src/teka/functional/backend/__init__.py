"""What every backend has in common: its cost before, and its sums after."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from teka._compat import is_plain_eager
from teka.functional.kernel.base import KeyFeatures, Outputs, QueryFeatures, Values

BACKENDS = ("auto", "dense", "linear", "toeplitz", "rings", "fft")
BYTES = 4  # of a number, float32


@dataclass(frozen=True)
class Rate:
    """Nanoseconds that a backend takes for one head whatever its size, for a multiply-add, and for a byte moved."""

    call: float
    multiply_add: float
    byte: float


# Fitted to the times of one thread of a server CPU, forward and with the backward pass, over one to three dimensions:
# `python benchmarks/backends.py --table` holds them against the times.
RATES = {
    "dense": Rate(300_000.0, 0.070, 0.041),
    "linear": Rate(380_000.0, 0.14, 0.0),
    "toeplitz": Rate(350_000.0, 0.041, 0.11),
    "rings": Rate(720_000.0, 0.0, 0.027),
    "fft": Rate(330_000.0, 0.10, 0.080),
}
# Not measured: on a GPU arithmetic is ahead of memory by more.
ELSEWHERE = Rate(0.0, 1.0, 20.0)


@dataclass(frozen=True)
class Cost:
    """Work of the forward pass of one head of one sample.

    Args:
        multiply_adds: Multiply-adds of matrix products and of sums.
        bytes: Bytes read and written by passes over tensors that are more than the inputs and the output.
    """

    multiply_adds: int
    bytes: int

    def work(self, backend: str, device_type: str = "cpu") -> float:
        """Both in one number at the rate of the backend: nanoseconds on a CPU, elsewhere of no unit."""
        rate = RATES[backend] if device_type == "cpu" else ELSEWHERE
        return rate.call + rate.multiply_add * self.multiply_adds + rate.byte * self.bytes


def with_ones(value: Values) -> Float[Tensor, "batch heads keys channels"]:
    """Values with a column of ones, so that one product gives numerators and denominators."""
    return torch.cat([value, value.new_ones(*value.shape[:-1], 1)], dim=-1)


@dataclass(frozen=True)
class Sums:
    """Σ_j weight_ij v_j and Σ_j weight_ij, both divided by exp(log_peak_i), which keeps them in range.

    Args:
        numerator: Weighted sum of the values.
        denominator: Sum of the weights.
        log_peak: What was taken out of each row, or None for nothing.
    """

    numerator: Float[Tensor, "batch heads queries dim"]
    denominator: Float[Tensor, "batch heads queries"]
    log_peak: Float[Tensor, "#batch #heads #queries"] | None = None

    @classmethod
    def of_channels(cls, mixed: Tensor, log_peak: Tensor | None = None) -> "Sums":
        """The sums of values `with_ones`."""
        return cls(mixed[..., :-1], mixed[..., -1], log_peak)

    def __add__(self, other: "Sums") -> "Sums":
        """Sums over both sets of keys."""
        if self.log_peak is None and other.log_peak is None:
            return Sums(self.numerator + other.numerator, self.denominator + other.denominator)
        zero = torch.zeros((), dtype=self.numerator.dtype, device=self.numerator.device)
        peaks = [zero if sums.log_peak is None else sums.log_peak for sums in (self, other)]
        peak = torch.maximum(*peaks).detach()
        mine, theirs = (torch.exp(part - peak) for part in peaks)
        return Sums(
            self.numerator * mine[..., None] + other.numerator * theirs[..., None],
            self.denominator * mine + other.denominator * theirs,
            peak,
        )

    def divide(self, *, nonnegative: bool) -> Outputs:
        """The weighted mean; where no weight can be negative, a row that underflows altogether gives 0 and not NaN."""
        denominator = self.denominator
        empty = denominator < torch.finfo(denominator.dtype).tiny if nonnegative else denominator == 0
        # The numerator of such a row is 0 too. Divided by 1 it has a finite gradient; by a tiny number it has none.
        return self.numerator / denominator.masked_fill(empty, 1.0)[..., None]

    def with_rows_again(
        self,
        rows: Int[Tensor, "rows"],
        log_rows: Callable[[Int[Tensor, "rows"]], Float[Tensor, "heads rows keys"]],
        query_features: QueryFeatures,
        key_features: KeyFeatures,
        value: Values,
    ) -> "Sums":
        """The sums with some rows computed from log c of every pair, relative to its largest over the keys that count.

        Those are rows that a fast backend cannot resolve; features of keys that do not count are 0.
        """
        if len(rows) == 0:
            return self
        counts = (key_features != 0).any(dim=-1)[:, :, None]
        log_pairs = log_rows(rows)[None].masked_fill(~counts, -torch.inf)
        peak = log_pairs.detach().amax(dim=-1)
        peak = peak.masked_fill(peak == -torch.inf, 0.0)
        pairs = query_features[:, :, rows] @ key_features.transpose(-2, -1)
        again = (pairs * torch.exp(log_pairs - peak[..., None])) @ with_ones(value)
        assert self.log_peak is not None
        return Sums(
            self.numerator.index_copy(2, rows, again[..., :-1]),
            self.denominator.index_copy(2, rows, again[..., -1]),
            self.log_peak.expand(self.denominator.shape).index_copy(2, rows, peak),
        )


def rows_of(unresolved: Tensor) -> Int[Tensor, "rows"]:
    """Queries that are unresolved in any sample and head, of (batch, heads, queries)."""
    return unresolved.flatten(0, 1).any(dim=0).nonzero().flatten()


def add_prefix(
    sums: Sums,
    query_features: QueryFeatures,
    key_features: KeyFeatures,
    value: Values,
    num_prefix_tokens: int,
    unplaced: Callable[[Tensor, Tensor, Tensor], Sums],
) -> Sums:
    """Sums of all tokens from those of the tokens that have a position; `unplaced` gives those of the other pairs."""
    first = num_prefix_tokens
    if not first:
        return sums
    sums = sums + unplaced(query_features[:, :, first:], key_features[:, :, :first], value[:, :, :first])
    prefix = unplaced(query_features[:, :, :first], key_features, value)
    return Sums(
        torch.cat([prefix.numerator, sums.numerator], dim=2), torch.cat([prefix.denominator, sums.denominator], dim=2)
    )


def checkpointed(function: Callable[..., Tensor], *arguments: object) -> Tensor:
    """function(*arguments) without randomness, computed again in the backward pass, if there is to be one.

    The transforms of torch.func know no such thing; under them everything is kept.
    """
    if not torch.is_grad_enabled() or not (torch.compiler.is_compiling() or is_plain_eager()):
        return function(*arguments)
    output = checkpoint(function, *arguments, use_reentrant=False)
    assert isinstance(output, Tensor)
    return output


def transposed(tokens: Float[Tensor, "tokens channels"]) -> Float[Tensor, "channels tokens"]:
    """Tokens with the channels first, each channel in one piece.

    Rows that lie apart are first put together: torch has a fast copy for the transpose of a whole matrix, and a slow
    one, several times over where rows lie a power of two apart, for any other.
    """
    return tokens.contiguous().T.contiguous()
