"""Cost model that predicts which attention algorithm (backend) is the fastest for an input.

The cost of an algorithm is the number of its multiply-adds and of the bytes that it moves. The time
is estimated from this cost and from speeds that were measured once.
"""

import math
from dataclasses import dataclass

from teka._compat import replace
from teka.checks import check_name
from teka.errors import wrong_value
from teka.execution_mode import ExecutionMode, execution_mode
from teka.functional.backends.decay_scan import BLOCK
from teka.functional.backends.linear import CHUNK_TOKENS
from teka.functional.backends.local_window import Tiling
from teka.grid import Grid

BACKENDS = ("auto", "dense", "linear", "toeplitz", "rings", "fft", "windows")
BYTES = 4  # of a float32 element


@dataclass(frozen=True)
class BackendTimes:
    """Nanoseconds that an attention algorithm takes for each unit of work, such as a multiply-add.

    Args:
        call: Time of a call.
        head: Time of a head of one sample.
        multiply_add: Time of a multiply-add.
        byte: Time to move a byte.
    """

    call: float
    head: float
    multiply_add: float
    byte: float


# Fitted to times of one thread of a server CPU, forward and with the backward pass, on grids of one
# to three axes. `python -m reproduction.benchmarks.backends` fits them again and compares the
# resulting choices with the times.
CPU_TIMES = {
    "dense": BackendTimes(600_000.0, 0.0, 0.070, 0.041),
    "linear": BackendTimes(650_000.0, 0.0, 0.14, 0.0),
    "toeplitz": BackendTimes(0.0, 350_000.0, 0.041, 0.11),
    "rings": BackendTimes(0.0, 720_000.0, 0.0, 0.027),
    "fft": BackendTimes(0.0, 330_000.0, 0.10, 0.080),
    "windows": BackendTimes(0.0, 700_000.0, 0.14, 0.10),
}
# Not measured. On a GPU, moving a byte is slower in comparison with arithmetic.
GPU_TIMES = BackendTimes(0.0, 0.0, 1.0, 20.0)


@dataclass(frozen=True)
class Cost:
    """Estimated work of an attention algorithm for one head of one sample, in the forward pass.

    The work consists of multiply-adds and of bytes moved. It is used to choose the fastest
    algorithm.

    Args:
        multiply_adds: Number of multiply-adds.
        bytes: Number of bytes that are moved, without the inputs and the output.
        heads: Number of heads of all samples, which one call computes.
    """

    multiply_adds: int
    bytes: int
    heads: int = 1

    def estimated_time(self, backend: str, device_type: str = "cpu") -> float:
        """Estimate the time of this work per head, to find the fastest algorithm.

        The time is in nanoseconds on a CPU. On a GPU the unit is arbitrary, because no times were
        measured there.
        """
        rate = CPU_TIMES[backend] if device_type == "cpu" else GPU_TIMES
        fixed = rate.call / self.heads + rate.head
        return fixed + rate.multiply_add * self.multiply_adds + rate.byte * self.bytes


def select_backend(backend: str, costs: dict[str, Cost], device_type: str = "cpu") -> str:
    """Return the name of the backend that computes attention.

    For "auto", this is the backend with the lowest estimated time. Any other name is returned
    unchanged.

    Raises:
        ValueError: The backend is unknown or has no cost, because it cannot compute the kernels.
    """
    check_name("backend", backend, BACKENDS)
    if backend == "auto":
        # The FFT backend reads elements to recompute rows that underflow, which only eager mode can
        # do.
        is_eager = execution_mode() is ExecutionMode.EAGER
        names = [name for name in costs if name != "fft" or is_eager]
        # torch.compile does not support min with a key.
        work = [costs[name].estimated_time(name, device_type) for name in names]
        return names[work.index(min(work))]
    if backend not in costs:
        names = ", ".join(map(repr, ("auto", *costs)))
        raise wrong_value("backend", backend, f"one of {names} for this kernel and these positions")
    return backend


@dataclass(frozen=True)
class AttentionSizes:
    """Sizes of one attention head, from which the costs of attention algorithms are estimated."""

    num_queries: int
    num_keys: int
    num_features: int
    dim_value: int
    is_causal: bool


def dense_cost(
    num_queries: int, num_keys: int, inner_product_size: int, dim_value: int, *, passes: int
) -> Cost:
    """Estimate the work of attention that computes the weight of every query–key pair.

    The result counts multiply-adds and bytes moved, so that the fastest algorithm can be chosen.
    """
    pairs = num_queries * num_keys
    return Cost(pairs * (inner_product_size + dim_value + 1), pairs * passes * 2 * BYTES)


def linear_cost(sizes: AttentionSizes, feature_multiplier: int = 1) -> Cost:
    """Estimate the work of linear attention, from the number of tokens and features.

    The result counts multiply-adds and bytes moved, so that the fastest algorithm can be chosen.
    Causal attention also computes the weights of all pairs of tokens within short chunks. If
    positions are combined with the features, their number is multiplied by `feature_multiplier`.
    """
    num_features = sizes.num_features * feature_multiplier
    num_products = (sizes.num_queries + sizes.num_keys) * num_features
    multiply_adds = num_products * (sizes.dim_value + 1)
    num_bytes = 2 * num_products * BYTES if feature_multiplier > 1 else 0
    if sizes.is_causal:
        pairs = sizes.num_keys * min(CHUNK_TOKENS, sizes.num_keys)
        multiply_adds += pairs * (num_features + sizes.dim_value + 1)
        num_bytes += pairs * 3 * 2 * BYTES
    return Cost(multiply_adds, num_bytes)


def decay_cost(sizes: AttentionSizes, grid: Grid) -> Cost:
    """Estimate the work of linear attention whose weights decay with the distance.

    The result counts multiply-adds and bytes moved, so that the fastest algorithm can be chosen.
    """
    if grid.num_axes == 1:
        cost = linear_cost(replace(sizes, is_causal=True))
        passes = 1 if sizes.is_causal else 2
        return Cost(passes * cost.multiply_adds, passes * cost.bytes)
    num_elements = sizes.num_keys * sizes.num_features * (sizes.dim_value + 1)
    multiply_adds = sum(min(side, 3 * BLOCK) for side in grid.shape) * num_elements
    return Cost(multiply_adds + 2 * num_elements, 6 * grid.num_axes * num_elements * BYTES)


def separable_cost(query_grid: Grid, key_grid: Grid, num_features: int, dim_value: int) -> Cost:
    """Estimate the work of linear attention that processes the axes of a grid one at a time.

    The result counts multiply-adds and bytes moved, so that the fastest algorithm can be chosen.
    """
    channels = num_features * (dim_value + 1)
    multiply_adds, moved, size = 0, 0, key_grid.num_tokens
    for query_side, key_side in zip(query_grid.shape, key_grid.shape, strict=True):
        moved += size
        multiply_adds += size * query_side
        size = size // key_side * query_side
        moved += size
    moved += 2 * size
    # One matrix of weights for each axis.
    sides = zip(query_grid.shape, key_grid.shape, strict=True)
    num_weights = sum(query_side * key_side for query_side, key_side in sides)
    num_bytes = moved * channels * BYTES + num_weights * 6 * 2 * BYTES
    return Cost((multiply_adds + key_grid.num_tokens + size) * channels, num_bytes)


def fft_cost(query_grid: Grid, key_grid: Grid, num_features: int, dim_value: int) -> Cost:
    """Estimate the work of linear attention by fast Fourier transforms (FFT).

    The result counts multiply-adds and bytes moved, so that the fastest algorithm can be chosen.
    """
    sides = zip(query_grid.shape, key_grid.shape, query_grid.periodic, strict=True)
    sizes = [
        query_side if periodic else query_side + key_side - 1
        for query_side, key_side, periodic in sides
    ]
    num_elements = math.prod(sizes) * num_features * (dim_value + 1)
    multiply_adds = 2 * num_elements * 2 * 2.5 * math.log2(max(2, math.prod(sizes)))
    return Cost(int(multiply_adds), num_elements * 2 * BYTES * (4 + 2 * len(sizes)))


def rings_cost(grid: Grid, num_features: int, dim_value: int, max_distance: int) -> Cost:
    """Estimate the work of linear attention that first sums all keys at equal distance.

    The result counts multiply-adds and bytes moved, so that the fastest algorithm can be chosen.
    """
    # A product with a weight takes as long as five additions (measured). Distant tokens take as
    # long as near rings.
    additions = 2 * (3 * grid.num_axes + 5) * max_distance + 2 * grid.num_axes + 3
    num_elements = grid.num_tokens * num_features * (dim_value + 1)
    return Cost(num_elements * additions, num_elements * additions * 3 * BYTES)


def signed_offset_cost(
    num_tokens: int, num_features: int, dim_value: int, max_distance: int
) -> Cost:
    """Estimate the work of linear attention with one weight for each offset up to `max_distance`.

    The result counts multiply-adds and bytes moved, so that the fastest algorithm can be chosen.
    """
    near = (2 * max_distance - 1) * (num_features + dim_value + 1)
    far = 2 * num_features * (dim_value + 1)
    return Cost(num_tokens * (near + far), num_tokens * (near + 2 * far) * 3 * BYTES)


def window_cost(tiling: Tiling, inner_product_size: int, dim_value: int) -> Cost:
    """Estimate the work of attention in which each query attends to a local window of keys.

    The result counts multiply-adds and bytes moved, so that the fastest algorithm can be chosen.
    The keys and values around each tile of the grid are copied, which is counted, too.
    """
    num_tiles = math.prod(tiling.counts)
    # torch.compile cannot trace a generator as an argument.
    num_keys = math.prod([side + 2 * tiling.reach for side in tiling.sides])
    tile = dense_cost(math.prod(tiling.sides), num_keys, inner_product_size, dim_value, passes=4)
    copied = num_keys * (inner_product_size + dim_value) * 2 * BYTES
    return Cost(num_tiles * tile.multiply_adds, num_tiles * (tile.bytes + copied))
