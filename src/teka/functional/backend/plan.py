"""Which backend computes an attention, by the cost of each that can."""

from dataclasses import dataclass

import torch

from teka.checks import check_name
from teka.errors import wrong_value
from teka.functional.backend.cost import (
    Cost,
    axis_matrices_bytes,
    causal_linear_cost,
    dense_cost,
    fft_cost,
    linear_cost,
    toeplitz_cost,
)
from teka.functional.backend.fft import fft_fits
from teka.functional.backend.linear.causal import CHUNK_TOKENS
from teka.functional.backend.rings.rings import rings_cost_terms
from teka.functional.eager import is_plain_eager
from teka.functional.kernel import FeatureKernel, Kernel, Softmax
from teka.functional.placement import Placement
from teka.functional.relative import (
    FactorRelative,
    Relative,
    RingRelative,
    RotaryRelative,
    Rotation,
    RotationJoint,
    SeparableRelative,
    StationaryRelative,
    WaveRelative,
)
from teka.grid import Grid

BACKENDS = ("auto", "dense", "linear", "toeplitz", "rings", "fft")


@dataclass(frozen=True)
class Workload:
    """Sizes of one attention.

    Args:
        kernel: The content kernel.
        relative: The relative kernel, or None.
        placement: Where the tokens are.
        num_queries: Number of queries.
        num_keys: Number of keys.
        dim: Size of queries and keys.
        dim_value: Size of values.
        is_causal: Whether no query sees a later key.
    """

    kernel: Kernel
    relative: Relative | None
    placement: Placement
    num_queries: int
    num_keys: int
    dim: int
    dim_value: int
    is_causal: bool = False


def backend_costs(work: Workload) -> dict[str, Cost]:
    """Cost of every backend that can compute this attention exactly as defined; "dense" always can."""
    kernel, relative, placement = work.kernel, work.relative, work.placement
    dim = work.dim
    if isinstance(relative, RotationJoint):
        dim, relative = dim + relative.num_position_features, None
    sizes = (work.num_queries, work.num_keys)
    costs = {"dense": _dense_cost(work, relative, dim)}
    if not isinstance(kernel, FeatureKernel):
        return costs
    num_features = kernel.num_features(dim)
    plain = relative is None or isinstance(relative, RotaryRelative)
    if work.is_causal:
        if placement.num_prefix_tokens and relative is not None:
            return costs
        if plain or isinstance(relative, WaveRelative):
            waves = relative.num_waves if isinstance(relative, WaveRelative) else 1
            costs["linear"] = causal_linear_cost(work.num_queries, num_features, waves, work.dim_value, CHUNK_TOKENS)
    elif plain or isinstance(relative, WaveRelative):
        waves = relative.num_waves if isinstance(relative, WaveRelative) else 1
        costs["linear"] = linear_cost(*sizes, num_features, waves, work.dim_value)
    grid = placement.shared_grid
    if grid is not None and isinstance(relative, RingRelative) and _rings_go(relative, grid, work.is_causal):
        multiply_adds, moved = rings_cost_terms(grid, num_features, work.dim_value, relative.max_distance)
        costs["rings"] = Cost(multiply_adds, moved)
    if work.is_causal or placement.grids is None:
        return costs
    if isinstance(relative, SeparableRelative):
        costs["toeplitz"] = toeplitz_cost(*placement.grids, num_features, work.dim_value)
    # Which rows to compute again is read from the numbers, which a compiled graph cannot do.
    if isinstance(relative, StationaryRelative) and fft_fits(placement) and not torch.compiler.is_compiling():
        costs["fft"] = fft_cost(*placement.grids, num_features, work.dim_value)
    return costs


def _rings_go(relative: RingRelative, grid: Grid, is_causal: bool) -> bool:
    """Whether ring sums can be taken on a grid; causally, on a line whose keys follow one another."""
    return relative.rings_fit(grid) and not (is_causal and (grid.num_axes > 1 or grid.periodic[0]))


def _dense_cost(work: Workload, relative: Relative | None, dim: int) -> Cost:
    """Cost of the dense backend by the way it takes: fused, in tiles with c by axes, or plain."""
    kernel, placement = work.kernel, work.placement
    size = kernel.dense_size(dim)
    passes, more = 3, 0
    if isinstance(relative, RotaryRelative):
        passes = 6
    elif isinstance(relative, FactorRelative):
        passes += relative.pair_passes(placement.num_axes)
    if isinstance(kernel, Softmax):
        unbounded = all(period is None for period in placement.periods)
        if relative is None or isinstance(relative, RotaryRelative):
            passes = 1
        elif type(relative) is Rotation and unbounded:
            passes, size = 1, size + 2 * relative.cosine_weight.shape[1] * relative.cosine_weight.shape[2]
    elif isinstance(relative, SeparableRelative) and placement.grids is not None and not work.is_causal:
        passes, more = 1, axis_matrices_bytes(*placement.grids)
    cost = dense_cost(work.num_queries, work.num_keys, size, work.dim_value, passes=passes)
    return Cost(cost.multiply_adds, cost.bytes + more)


def choose_backend(backend: str, costs: dict[str, Cost], device_type: str = "cpu") -> str:
    """The backend asked for, or for "auto" the cheapest.

    Raises:
        ValueError: An unknown name, or a backend that cannot compute this attention.
    """
    check_name("backend", backend, BACKENDS)
    if backend == "auto":
        # Nor can vmap read numbers. In two steps, for torch.compile knows no `min` with a key.
        names = [name for name in costs if name != "fft" or is_plain_eager()]
        work = [costs[name].work(name, device_type) for name in names]
        return names[work.index(min(work))]
    if backend not in costs:
        expected = f"one of {', '.join(map(repr, ('auto', *costs)))} for this kernel, relative kernel and placement"
        raise wrong_value("backend", backend, expected)
    return backend
