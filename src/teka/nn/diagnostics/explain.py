"""Comparison of the attention algorithms (backends) of a layer by their estimated cost."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import torch
from torch import Tensor, nn

from teka.checks import check_evaluation_mode
from teka.errors import wrong_argument, wrong_type, wrong_value
from teka.functional import length_mask
from teka.functional.backends.costs import GPU_TIMES, Cost, select_backend
from teka.grid import Grid, GridLike, as_grid
from teka.nn.attention import Attention
from teka.nn.diagnostics.report import LayerReports
from teka.nn.head_groups import HeadGroup

T = TypeVar("T")
# Largest number of tokens for which a crossover is searched.
MAX_CROSSOVER = 2**24
SELF_ATTENTION_INPUTS = ("tokens", "grid", "key_mask", "num_prefix_tokens", "positions")


@dataclass(frozen=True)
class HeadGroupCosts:
    """Estimated cost of attention heads with each algorithm (backend) that can compute them.

    The heads share their kernels. All backends have the same result. For example, "dense" computes
    every pair of tokens.

    Attributes:
        name: Names of the kernels, such as "softmax × rotary".
        num_heads: Number of heads.
        backend: Backend that the layer uses for the heads.
        is_cheapest: True if the option of the layer is "auto", which chooses the cheapest backend.
        costs: Cost of one head and sample with each backend, cheapest first.
        work: Estimated time of one head and sample with each backend, in nanoseconds on a CPU, and
            in arbitrary units on other devices.
        crossover: Smallest number of tokens for which another backend costs less than "dense", on
            grids of the same proportions. None if there is none up to `MAX_CROSSOVER`.
    """

    name: str
    num_heads: int
    backend: str
    is_cheapest: bool
    costs: dict[str, Cost]
    work: dict[str, float]
    crossover: int | None

    def __str__(self) -> str:
        lines = [
            f"{self.name}, {self.num_heads} head{'s' * (self.num_heads > 1)}",
            f"  {'backend':<10}{'multiply-adds':>20}{'bytes moved':>20}{'cost':>12}",
        ]
        for name, cost in self.costs.items():
            ratio = self.work[name] / min(self.work.values())
            lines.append(f"  {name:<10}{cost.multiply_adds:>20,}{cost.bytes:>20,}{ratio:>11.2f}×")
            if name == self.backend:
                reason = "cheapest" if self.is_cheapest else "set by the layer"
                lines[-1] += f"  ← used ({reason})"
        range_of_dense = f"up to {MAX_CROSSOVER:,}"
        if self.crossover is not None:
            range_of_dense = f"below {self.crossover:,}"
        lines.append(f"  dense costs least {range_of_dense} tokens")
        return "\n".join(lines)


@dataclass(frozen=True)
class CostReport:
    """Estimated cost of an attention layer on a grid with each algorithm (backend).

    Backends have the same result but different costs. `str` returns a table.

    Attributes:
        groups: Costs of each group of heads that share their kernels.
        num_tokens: Number of queries, which includes prefix tokens without a position.
        num_keys: Number of keys.
        batch: Number of samples of a call.
        device_type: Type of the device for which the costs are estimated, such as "cpu".
    """

    groups: tuple[HeadGroupCosts, ...]
    num_tokens: int
    num_keys: int
    batch: int
    device_type: str

    def __str__(self) -> str:
        rate = "at rates measured on a CPU"
        if self.device_type != "cpu":
            rate = f"as multiply-adds + {GPU_TIMES.byte:g} × bytes moved, not measured"
        title = (
            f"{self.num_tokens:,} tokens attend to {self.num_keys:,}, batch size {self.batch:,}\n"
            f"forward cost of one head and sample, {rate}"
        )
        return "\n\n".join([title, *map(str, self.groups)])


@overload
def explain(  # pyright: ignore[reportOverlappingOverload]
    layer: Attention, *inputs: Any, **keywords: Any
) -> CostReport: ...


@overload
def explain(layer: nn.Module, *inputs: Any, **keywords: Any) -> LayerReports[CostReport]: ...


def explain(
    layer: nn.Module, *inputs: Any, device_type: str | None = None, **keywords: Any
) -> CostReport | LayerReports[CostReport]:
    """Compare the estimated costs of all algorithms (backends) that can compute an attention layer.

    All backends have the same result. For example, "dense" computes every pair of tokens, and
    "linear" sums products of features. The cost is the estimated time for multiply-adds and memory
    traffic. With backend="auto", a layer uses the cheapest backend. For a model, the result
    contains a report on each of its attention layers.

    Args:
        layer: An `Attention`, or a block or model that contains some.
        inputs: For an `Attention`, its `grid`. For another module, the inputs of a call, which is
            run. The report of a layer is that of its first call.
        device_type: Device that the costs are for, "cpu" or "cuda". By default, the device of the
            layer.
        keywords: For an `Attention`, `num_prefix_tokens`, `context_grid` and `batch` (number of
            samples, 1 by default). For another module, keyword arguments of the call.

    Raises:
        ValueError: The backend of a layer cannot compute it, or the model has no attention layer.

    >>> import torch, teka
    >>> block = teka.nn.TransformerBlock(16, 2).eval()
    >>> explanations = teka.explain(block, torch.zeros(1, 12, 16), teka.Grid((3, 4)))
    >>> explanations["attention"].groups[0].backend in ("dense", "linear")
    True
    """
    if isinstance(layer, Attention):
        return _explain_layer(layer, *inputs, device_type=device_type, **keywords)

    def explain_call(
        layer: Attention,
        tokens: Tensor,
        grid: GridLike | None,
        num_prefix_tokens: int,
        positions: Tensor | None,
        **_: Any,
    ) -> CostReport:
        if positions is not None and layer.relative is not None:
            raise wrong_argument("positions", "a value", "None, because costs need a grid")
        grid, num_prefix_tokens = layer.resolve_grid(grid, num_prefix_tokens)
        return _explain_layer(
            layer,
            grid or tokens.shape[1] - num_prefix_tokens,
            num_prefix_tokens=num_prefix_tokens,
            batch=len(tokens),
            device_type=device_type,
        )

    return collect_layer_reports(layer, inputs, keywords, explain_call)


def collect_layer_reports(
    module: nn.Module,
    inputs: tuple[Any, ...],
    keywords: dict[str, Any],
    make_report: Callable[..., T],
) -> LayerReports[T]:
    """Run a model once, and return a report on the first call of each of its attention layers.

    Args:
        module: Module that contains attention layers.
        inputs: Arguments of the call.
        keywords: Keyword arguments of the call.
        make_report: Returns the report for a layer and its inputs, which are keyword arguments
            with the names in `SELF_ATTENTION_INPUTS`. If it raises a ValueError, the layer is
            skipped.
    """
    names = {layer: name for name, layer in module.named_modules() if isinstance(layer, Attention)}
    if not names:
        expected = "a teka.nn.Attention, or a module that contains some"
        raise wrong_value("layer", type(module).__name__, expected)
    check_evaluation_mode("layer", module)
    signature = inspect.signature(Attention.forward)
    reports: LayerReports[T] = LayerReports()

    def report(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Later calls, and calls that a report makes itself, find no name and are ignored.
        name = names.pop(layer, None)  # pyright: ignore[reportArgumentType, reportCallIssue]
        if name is None:
            return
        call = signature.bind(layer, *args, **kwargs)
        call.apply_defaults()
        values = call.arguments
        if values["context"] is not None or values["cu_seqlens"] is not None:
            reports.skipped[name] = "it attends to a context or to packed sequences"
            return
        if values["lengths"] is not None:
            values["key_mask"] = length_mask(values["lengths"], values["tokens"].shape[1])
        try:
            reports[name] = make_report(
                layer, **{key: values[key] for key in SELF_ATTENTION_INPUTS}
            )
        except ValueError as error:
            reports.skipped[name] = str(error)

    handles = [layer.register_forward_pre_hook(report, with_kwargs=True) for layer in names]
    try:
        with torch.no_grad():
            module(*inputs, **keywords)
    finally:
        for handle in handles:
            handle.remove()
    return reports


def _explain_layer(
    layer: Attention,
    grid: GridLike | None = None,
    *,
    num_prefix_tokens: int = 0,
    context_grid: GridLike | None = None,
    batch: int = 1,
    device_type: str | None = None,
) -> CostReport:
    query_grid = as_grid("grid", grid)  # pyright: ignore[reportArgumentType]
    key_grid = None if context_grid is None else as_grid("context_grid", context_grid)
    if key_grid is not None and (layer.causal or num_prefix_tokens):
        expected = "None for a causal layer or with prefix tokens"
        raise wrong_value("context_grid", context_grid, expected)
    if device_type is None:
        device_type = layer.output.weight.device.type
    if not isinstance(device_type, str):
        raise wrong_type("device_type", device_type, "None or a name such as 'cpu'")
    options = {"num_prefix_tokens": num_prefix_tokens, "batch": batch}
    layer.set_num_axes(query_grid.num_axes)
    groups = []
    for group in layer.head_groups():
        costs = group.estimate_costs(query_grid, context_grid=key_grid, **options)
        work = {name: cost.estimated_time(name, device_type) for name, cost in costs.items()}

        def is_dense_cheapest(factor: float, group: HeadGroup = group) -> bool:
            context = None if key_grid is None else _scaled(key_grid, factor)
            costs = group.estimate_costs(
                _scaled(query_grid, factor), context_grid=context, **options
            )
            return select_backend("auto", costs, device_type) == "dense"

        longer = _find_crossover(is_dense_cheapest, query_grid) if len(costs) > 1 else None
        explanation = HeadGroupCosts(
            name=group.name,
            num_heads=group.num_heads,
            backend=select_backend(group.backend, costs, device_type),
            is_cheapest=group.backend == "auto",
            costs={name: costs[name] for name in sorted(costs, key=work.__getitem__)},
            work=work,
            crossover=None if longer is None else longer.num_tokens + num_prefix_tokens,
        )
        groups.append(explanation)
    num_tokens, num_keys = (
        grid.num_tokens + num_prefix_tokens for grid in (query_grid, key_grid or query_grid)
    )
    return CostReport(tuple(groups), num_tokens, num_keys, batch, device_type)


def _scaled(grid: Grid, factor: float) -> Grid:
    shape = [max(1, round(side * factor)) for side in grid.shape]
    return Grid(shape, grid.spacing, grid.periodic, grid.origin)


def _find_crossover(is_dense_cheapest: Callable[[float], bool], grid: Grid) -> Grid | None:
    """Return the smallest grid on which "dense" is not the cheapest attention algorithm.

    The grid has the proportions of `grid`. Return None if "dense" is the cheapest for all grids of
    up to `MAX_CROSSOVER` tokens.

    Args:
        is_dense_cheapest: True if "dense" is cheapest on a grid whose sides are those of `grid`
            times the argument.
        grid: Grid with the proportions of the result.
    """
    low = (1 / grid.num_tokens) ** (1 / grid.num_axes)
    high = (MAX_CROSSOVER / grid.num_tokens) ** (1 / grid.num_axes)
    if is_dense_cheapest(high):
        return None
    if not is_dense_cheapest(low):
        return _scaled(grid, low)
    while _scaled(grid, high) != _scaled(grid, low) and high / low > 1 + 1e-9:
        middle = math.sqrt(low * high)
        if is_dense_cheapest(middle):
            low = middle
        else:
            high = middle
    return _scaled(grid, high)
