"""Which backend computes an attention: the work of each that can, and the cheapest, chosen once."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from teka._compat import replace
from teka.checks import check_name
from teka.errors import wrong_value
from teka.execution_mode import ExecutionMode, execution_mode, is_dynamic
from teka.functional.backends import BACKENDS, Cost
from teka.functional.backends.dense import dense_cost
from teka.functional.backends.linear import Sizes, linear_cost
from teka.functional.kernels.base import Kernel
from teka.functional.positions import Positions
from teka.functional.relative.base import Relative

# Number of queries and of keys for which a backend is chosen if an exported graph takes any.
DYNAMIC_TOKENS = 4096
# Backends chosen so far, by all that a choice depends on.
_choices: dict[tuple, str] = {}
MOST_CHOICES = 1024
PLAIN = (type(None), bool, int, float, str)


@dataclass(frozen=True)
class Workload:
    """What the cost of one attention depends on: `dim` is the size of queries and keys."""

    kernel: Kernel
    relative: Relative | None
    positions: Positions
    num_queries: int
    num_keys: int
    dim: int
    dim_value: int
    is_causal: bool = False
    heads: int = 1
    batch: int = 1


def backend_costs(work: Workload) -> dict[str, Cost]:
    """Cost of every backend that can compute this attention exactly as defined; "dense" always can."""
    if work.relative is not None and work.relative.appends_features:
        work = replace(work, relative=None, dim=work.dim + work.relative.num_position_features)
    return {
        name: replace(cost, heads=work.heads * work.batch)
        for name, cost in _costs_of_a_head(work).items()
    }


def _costs_of_a_head(work: Workload) -> dict[str, Cost]:
    relative, features = work.relative, work.kernel.features
    costs = {"dense": _dense_cost(work)}
    if relative is not None and not work.is_causal:
        windows = relative.window_cost(
            work.positions, work.kernel.dense_size(work.dim), work.dim_value
        )
        if windows is not None:
            costs["windows"] = windows
    if features is None or (
        work.is_causal and work.positions.num_prefix_tokens and relative is not None
    ):
        return costs
    num_features = features.num_features(work.dim)
    sizes = Sizes(work.num_queries, work.num_keys, num_features, work.dim_value, work.is_causal)
    more = (
        {"linear": linear_cost(sizes)}
        if relative is None
        else relative.costs(sizes, work.positions)
    )
    return {**costs, **more}


def _dense_cost(work: Workload) -> Cost:
    """Cost of the dense backend by the way it takes: fused or plain."""
    kernel, relative, positions = work.kernel, work.relative, work.positions
    size = kernel.dense_size(work.dim)
    passes = 3 if relative is None else relative.dense_passes(positions.num_axes)
    depends_on_sample = relative is None or relative.uses_query or relative.rotates_features
    if not depends_on_sample and positions.grid is not None:
        # All samples share log c.
        passes = 3 + math.ceil((passes - 3) / work.batch)
    if kernel.is_softmax:
        longer = 0 if relative is None else relative.extra_softmax_dim(positions)
        if longer is not None:
            passes, size = 1, size + longer
    else:
        passes += kernel.extra_dense_passes
    return dense_cost(work.num_queries, work.num_keys, size, work.dim_value, passes=passes)


def select_backend(backend: str, costs: dict[str, Cost], device_type: str = "cpu") -> str:
    """The backend asked for, or for "auto" the cheapest, checked to be one that can compute this."""
    check_name("backend", backend, BACKENDS)
    if backend == "auto":
        # Nor can vmap read numbers. In two steps, for torch.compile knows no `min` with a key.
        names = [name for name in costs if name != "fft" or execution_mode() is ExecutionMode.EAGER]
        work = [costs[name].work(name, device_type) for name in names]
        return names[work.index(min(work))]
    if backend not in costs:
        expected = f"one of {', '.join(map(repr, ('auto', *costs)))} for this kernel, relative kernel and placement"
        raise wrong_value("backend", backend, expected)
    return backend


def chosen(backend: str, work: Workload, device_type: str) -> str:
    """The choice, which is remembered: that of a layer and a grid is made once."""
    check_name("backend", backend, BACKENDS)
    if is_dynamic(work.num_queries, work.num_keys):
        work = replace(work, num_queries=DYNAMIC_TOKENS, num_keys=DYNAMIC_TOKENS)
    signature = None if torch.compiler.is_compiling() else _signature(work)
    if signature is None:
        return select_backend(backend, backend_costs(work), device_type)
    signature = (backend, device_type, execution_mode() is ExecutionMode.EAGER, *signature)
    choice = _choices.get(signature)
    if choice is None:
        if len(_choices) >= MOST_CHOICES:
            _choices.clear()
        choice = _choices[signature] = select_backend(backend, backend_costs(work), device_type)
    return choice


def _signature(work: Workload) -> tuple | None:
    """What costs depend on: sizes, and kinds and settings of kernels; None where a setting may be anything."""
    positions = work.positions
    if (
        type(work.num_queries) is not int or type(work.num_keys) is not int
    ):  # numbers that are recorded
        return None
    found: list[object] = [
        positions.grid,
        positions.of_keys.grid,
        positions.num_axes,
        positions.num_prefix_tokens,
    ]
    found += [
        work.num_queries,
        work.num_keys,
        work.dim,
        work.dim_value,
        work.is_causal,
        work.heads,
        work.batch,
    ]
    for kernel in (work.kernel, work.relative):
        found.append(type(kernel))
        if any(getattr(kind, "__slots__", ()) for kind in type(kernel).__mro__):
            return None  # settings that `vars` does not see
        for setting in () if kernel is None else vars(kernel).values():
            if isinstance(setting, Tensor):
                found.append(tuple(setting.shape))
            elif isinstance(setting, PLAIN) or (
                isinstance(setting, tuple) and all(type(x) in PLAIN for x in setting)
            ):
                found.append(setting)
            else:
                return None
    return tuple(found)
