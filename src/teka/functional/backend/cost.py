"""What an attention costs in each backend: multiply-adds and bytes, by count."""

import math
from dataclasses import dataclass

from teka.grid import Grid

BYTES = 4
"""Bytes of a number, float32."""


@dataclass(frozen=True)
class Rate:
    """What a backend takes for its work, in nanoseconds.

    Args:
        call: Of one head, whatever its size.
        multiply_add: Of a multiply-add.
        byte: Of a byte that is moved.
    """

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
        """Both in one number, nanoseconds on a CPU, at the rate of the backend.

        Args:
            backend: Which backend's cost this is.
            device_type: "cpu", or another, where only the order of costs means something.
        """
        rate = RATES[backend] if device_type == "cpu" else ELSEWHERE
        return rate.call + rate.multiply_add * self.multiply_adds + rate.byte * self.bytes


def dense_cost(num_queries: int, num_keys: int, dense_size: int, dim_value: int, *, passes: int) -> Cost:
    """The weights, their product with the values, and some passes over the L × L matrix, read and written."""
    pairs = num_queries * num_keys
    return Cost(pairs * (dense_size + dim_value + 1), pairs * passes * 2 * BYTES)


def axis_matrices_bytes(query: Grid, key: Grid) -> int:
    """Bytes of making one matrix an axis: its logarithm, the largest of each row, and its exponential."""
    return sum(one * two for one, two in zip(query.shape, key.shape, strict=True)) * 6 * 2 * BYTES


def linear_cost(num_queries: int, num_keys: int, num_features: int, num_waves: int, dim_value: int) -> Cost:
    """The state and its product with the queries' features; products with waves are made and read once."""
    products = (num_queries + num_keys) * num_features * num_waves
    made = products if num_waves > 1 else 0
    return Cost(products * (dim_value + 1), made * 2 * BYTES)


def causal_linear_cost(num_tokens: int, num_features: int, num_waves: int, dim_value: int, chunk_tokens: int) -> Cost:
    """As `linear_cost`, and every pair within a chunk."""
    plain = linear_cost(num_tokens, num_tokens, num_features, num_waves, dim_value)
    pairs = num_tokens * min(chunk_tokens, num_tokens)
    within = dense_cost(1, pairs, num_features + num_waves, dim_value, passes=3)
    return Cost(plain.multiply_adds + within.multiply_adds, plain.bytes + within.bytes)


def toeplitz_cost(query: Grid, key: Grid, num_features: int, dim_value: int) -> Cost:
    """One matrix an axis over φ ⊗ [v, 1], which is written and read again for each axis."""
    channels = num_features * (dim_value + 1)
    multiply_adds, moved, size = 0, 0, key.num_tokens
    for query_side, key_side in zip(query.shape, key.shape, strict=True):
        moved += size
        multiply_adds += size * query_side
        size = size // key_side * query_side
        moved += size
    moved += 2 * size
    moved_in_all = moved * channels * BYTES + axis_matrices_bytes(query, key)
    return Cost((multiply_adds + key.num_tokens + size) * channels, moved_in_all)


def fft_cost(query: Grid, key: Grid, num_features: int, dim_value: int) -> Cost:
    """A transform and its inverse of φ ⊗ [v, 1] in float64, about 2.5 n log₂ n multiply-adds each."""
    sizes = [
        one if periodic else one + two - 1
        for one, two, periodic in zip(query.shape, key.shape, query.periodic, strict=True)
    ]
    size = math.prod(sizes) * num_features * (dim_value + 1)
    transforms = 2 * 2.5 * math.log2(max(2, math.prod(sizes)))
    return Cost(int(2 * size * transforms), size * 2 * BYTES * (4 + 2 * len(sizes)))
