"""Choice of the fastest algorithm (backend) for an attention call, by estimated cost."""

import math
from dataclasses import dataclass

from teka._compat import replace
from teka.checks import check_name
from teka.errors import wrong_value
from teka.execution_mode import ExecutionMode, execution_mode
from teka.functional.backends.costs import BACKENDS, AttentionSizes, Cost, dense_cost, linear_cost
from teka.functional.kernels.content_kernel import ContentKernel
from teka.functional.positions import Positions
from teka.functional.relative.relative_kernel import RelativeKernel


@dataclass(frozen=True)
class Workload:
    """Description of an attention call: its kernels, positions and sizes.

    The cost of each attention algorithm (backend) is estimated from this description.

    Args:
        kernel: Content kernel.
        relative: Relative kernel, or None.
        positions: Positions of queries and keys.
        num_queries: Number of queries.
        num_keys: Number of keys.
        dim: Size of queries and keys.
        dim_value: Size of values.
        is_causal: True if no query sees a later key.
        heads: Number of heads.
        batch: Number of samples.
    """

    kernel: ContentKernel
    relative: RelativeKernel | None
    positions: Positions
    num_queries: int
    num_keys: int
    dim: int
    dim_value: int
    is_causal: bool = False
    heads: int = 1
    batch: int = 1


def resolve_backend(backend: str, costs: dict[str, Cost], device_type: str = "cpu") -> str:
    """Replace the backend "auto" by the attention algorithm with the lowest estimated cost.

    Any other name is checked and returned.

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


def backend_costs(work: Workload) -> dict[str, Cost]:
    """Estimate the cost of an attention call for each algorithm (backend) that supports it.

    All algorithms give the same result.
    """
    if work.relative is not None and work.relative.appends_features:
        num_position_features = work.relative.num_position_features
        work = replace(work, relative=None, dim=work.dim + num_position_features)
    costs = {"dense": _dense_cost(work)}
    relative, features = work.relative, work.kernel.features
    if relative is not None and not work.is_causal:
        inner_product_size = work.kernel.inner_product_size(work.dim)
        window_cost = relative.window_cost(work.positions, inner_product_size, work.dim_value)
        if window_cost is not None:
            costs["windows"] = window_cost
    has_causal_prefix = work.is_causal and work.positions.num_prefix_tokens > 0
    if features is not None and not (has_causal_prefix and relative is not None):
        num_features = features.num_features(work.dim)
        sizes = AttentionSizes(
            work.num_queries, work.num_keys, num_features, work.dim_value, work.is_causal
        )
        if relative is None:
            costs["linear"] = linear_cost(sizes)
        else:
            costs.update(relative.estimate_costs(sizes, work.positions))
    num_heads = work.heads * work.batch
    return {name: replace(cost, heads=num_heads) for name, cost in costs.items()}


def _dense_cost(work: Workload) -> Cost:
    """Estimate the cost of an attention call with the backend "dense"."""
    kernel, relative, positions = work.kernel, work.relative, work.positions
    size = kernel.inner_product_size(work.dim)
    passes = 3 if relative is None else relative.num_weight_matrix_passes(positions.num_axes)
    depends_on_sample = relative is None or relative.uses_query or relative.rotates_features
    if not depends_on_sample and positions.grid is not None:
        # The samples of a batch share one matrix of the relative kernel.
        passes = 3 + math.ceil((passes - 3) / work.batch)
    if kernel.is_softmax:
        num_position_features = 0 if relative is None else relative.num_appended_entries(positions)
        if num_position_features is not None:
            passes = 1
            size += num_position_features
    else:
        passes += kernel.extra_dense_passes
    return dense_cost(work.num_queries, work.num_keys, size, work.dim_value, passes=passes)
