"""Costs of all backends for the attention layers of a model."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor, nn

from teka.audit.function import check_evaluation_mode
from teka.checks import check_sizes
from teka.errors import wrong_argument, wrong_type, wrong_value
from teka.functional import length_mask
from teka.functional.backends import ELSEWHERE, Cost
from teka.functional.dispatch import select_backend
from teka.grid import Grid
from teka.nn.attention import Attention
from teka.nn.diagnostics.report import LayerReports
from teka.nn.heads import HeadGroup

LONGEST = 2**24  # tokens up to which a crossover is looked for


@dataclass(frozen=True)
class GroupExplanation:
    """How some heads of a layer are computed."""

    name: str  # content kernel and relative kernel, "kernel × relative kernel"
    num_heads: int  # how many heads
    backend: str  # the backend that computes them
    is_chosen: bool  # whether it was chosen by cost, and not asked for
    costs: dict[
        str, Cost
    ]  # the forward cost of one head and sample in every backend that can, cheapest first
    # number of tokens from which on a backend other than dense is the cheapest, on grids of the same proportions
    # and with the same prefix; None if that is never up to `LONGEST` or if only dense can
    crossover: int | None


@dataclass(frozen=True)
class Explanation:
    """How a layer is computed on a grid; `str` of it is a table."""

    groups: tuple[GroupExplanation, ...]  # its heads by what computes them
    num_tokens: int  # tokens that attend: of the grid, and the prefix
    num_keys: int  # tokens that are attended to
    batch: int  # samples of one call
    device_type: str  # device for which bytes were weighed against multiply-adds

    def __str__(self) -> str:
        sizes = f"{self.num_tokens:,} tokens"
        if self.num_keys != self.num_tokens:
            sizes += f" attend to {self.num_keys:,}"
        of_batch = "" if self.batch == 1 else f" of {self.batch:,}"
        lines = [
            f"{sizes}; forward cost of one head of one sample{of_batch}",
            "cost: both at the rates of each backend, measured on a CPU"
            if self.device_type == "cpu"
            else f"cost = multiply-adds + {ELSEWHERE.byte:g} × bytes moved, a rate not measured on {self.device_type}",
        ]
        for group in self.groups:
            heads = "1 head" if group.num_heads == 1 else f"{group.num_heads} heads"
            lines += ["", f"{group.name}, {heads}"]
            lines.append(f"  {'backend':<10}{'multiply-adds':>20}{'bytes moved':>20}{'cost':>12}")
            least = min(cost.work(name, self.device_type) for name, cost in group.costs.items())
            for name, cost in group.costs.items():
                ratio = cost.work(name, self.device_type) / least
                how = "cheapest" if group.is_chosen else "asked for"
                mark = f"  ← computes it ({how})" if name == group.backend else ""
                lines.append(
                    f"  {name:<10}{cost.multiply_adds:>20,}{cost.bytes:>20,}{ratio:>11.2f}×{mark}"
                )
            lines.append(f"  {_crossover_line(group)}")
        return "\n".join(lines)


@overload
def explain(  # pyright: ignore[reportOverlappingOverload]
    layer: Attention,
    grid: Grid | None = None,
    *,
    num_prefix_tokens: int = 0,
    context_grid: Grid | None = None,
    num_tokens: int | None = None,
    batch: int = 1,
    device_type: str | None = None,
) -> Explanation: ...


@overload
def explain(
    layer: nn.Module, *inputs: object, device_type: str | None = None, **keywords: Any
) -> LayerReports[Explanation]: ...


def explain(
    layer: nn.Module, *inputs: Any, device_type: str | None = None, **keywords: Any
) -> Explanation | LayerReports[Explanation]:
    """Compare the costs of all backends for a layer, or for all attention layers of a model.

    The cost of a backend is a count of multiply-adds and of bytes moved, at the rates of that
    backend. backend="auto" takes the backend with the lowest cost.

    Args:
        layer: An `Attention`, or a block or model that contains some.
        inputs: For an `Attention` its `grid`, as in `Attention.forward`. For another module the
            inputs of a call. The call is run, and each layer is explained for its first input.
        device_type: Device that the costs are for, "cpu" or "cuda". By default that of the layer.
        keywords: For an `Attention`, `num_prefix_tokens`, `context_grid`, `batch` (number of
            samples, 1 by default) and, without a relative kernel, `num_tokens` instead of a grid.
            For another module, keyword arguments of the call.

    Raises:
        ValueError: A backend that cannot compute the layer, or a model without attention layers.

    >>> import torch, teka
    >>> block = teka.nn.TransformerBlock(16, 2).eval()
    >>> explanations = teka.explain(block, torch.zeros(1, 12, 16), teka.Grid((3, 4)))
    >>> explanations["attention"].groups[0].backend in ("dense", "linear")
    True
    """
    if isinstance(layer, Attention):
        return _explain_layer(layer, *inputs, device_type=device_type, **keywords)
    reports: LayerReports[Explanation] = LayerReports()
    for name, call in record_calls(layer, inputs, keywords, reports.skipped).items():
        if call.positions is not None and call.layer.relative is not None:
            reports.skipped[name] = "its tokens have positions but no grid"
            continue
        reports[name] = _explain_layer(
            call.layer,
            call.grid,
            num_prefix_tokens=call.num_prefix_tokens,
            num_tokens=call.tokens.shape[1] if call.grid is None else None,
            batch=call.tokens.shape[0],
            device_type=device_type,
        )
    return reports


@dataclass(frozen=True)
class LayerCall:
    """Arguments of a call of a self-attention layer."""

    layer: Attention
    tokens: Tensor
    grid: Any
    key_mask: Tensor | None
    num_prefix_tokens: int
    positions: Tensor | None


def record_calls(
    module: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any], skipped: dict[str, str]
) -> dict[str, LayerCall]:
    """Run a module and return the first call of each of its attention layers by name.

    Layers that attend to other tokens than their own, or to packed sequences, are added to
    `skipped` with the reason.
    """
    layers = {name: one for name, one in module.named_modules() if isinstance(one, Attention)}
    if not layers:
        expected = "a teka.nn.Attention, or a module that contains some"
        raise wrong_value("layer", type(module).__name__, expected)
    check_evaluation_mode("layer", module)
    calls: dict[str, LayerCall] = {}
    forward = inspect.signature(Attention.forward)

    def record(name: str, layer: Attention, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name in calls or name in skipped:
            return
        call = forward.bind(layer, *args, **kwargs)
        call.apply_defaults()
        arguments = call.arguments
        if arguments["context"] is not None or arguments["cu_seqlens"] is not None:
            skipped[name] = "it attends to a context or to packed sequences"
            return
        tokens, key_mask = arguments["tokens"], arguments["key_mask"]
        if arguments["lengths"] is not None:
            key_mask = length_mask(arguments["lengths"], tokens.shape[1])
        grid, prefix = arguments["grid"], arguments["num_prefix_tokens"]
        if arguments["positions"] is None:
            grid, prefix = layer.present_places(grid, prefix)
        calls[name] = LayerCall(
            layer, tokens.detach(), grid, key_mask, prefix, arguments["positions"]
        )

    handles = []
    for name, layer in layers.items():

        def hook(
            layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], name: str = name
        ) -> None:
            assert isinstance(layer, Attention)
            record(name, layer, args, kwargs)

        handles.append(layer.register_forward_pre_hook(hook, with_kwargs=True))
    try:
        with torch.no_grad():
            module(*inputs, **keywords)
    finally:
        for handle in handles:
            handle.remove()
    return {name: calls[name] for name in layers if name in calls}


def _explain_layer(
    layer: Attention,
    grid: Grid | None = None,
    *,
    num_prefix_tokens: int = 0,
    context_grid: Grid | None = None,
    num_tokens: int | None = None,
    batch: int = 1,
    device_type: str | None = None,
) -> Explanation:
    if grid is not None and num_tokens is not None:
        raise wrong_argument("num_tokens", "both", "None with a grid")
    if grid is None and (num_tokens is None or layer.relative is not None):
        expected = "a teka.Grid" + ("" if layer.relative is not None else ", or num_tokens")
        raise wrong_value("grid", grid, expected)
    check_sizes({"num_tokens": num_tokens}, or_none=True)
    check_sizes({"num_prefix_tokens": num_prefix_tokens}, 0)
    if device_type is not None and not isinstance(device_type, str):
        raise wrong_type("device_type", device_type, "None or a name such as 'cpu'")
    if context_grid is not None and (layer.causal or num_prefix_tokens):
        raise wrong_value(
            "context_grid", context_grid, "None for a causal layer or with prefix tokens"
        )
    if grid is None:
        assert num_tokens is not None
        grid = Grid(num_tokens)
    device = layer.output.weight.device.type if device_type is None else device_type

    groups = []
    for group in layer.head_groups():
        costs = group.costs(
            grid, num_prefix_tokens=num_prefix_tokens, context_grid=context_grid, batch=batch
        )

        def dense_is_cheapest(factor: float, group: HeadGroup = group) -> bool:
            longer = None if context_grid is None else _scaled(context_grid, factor)
            options = {
                "num_prefix_tokens": num_prefix_tokens,
                "context_grid": longer,
                "batch": batch,
            }
            costs = group.costs(_scaled(grid, factor), **options)
            return select_backend("auto", costs, device) == "dense"

        backend = select_backend(group.backend, costs, device)
        sorted_costs = dict(sorted(costs.items(), key=lambda item: item[1].work(item[0], device)))
        longer = _crossover(dense_is_cheapest, grid) if len(costs) > 1 else None
        crossover = None if longer is None else longer.num_tokens + num_prefix_tokens
        chosen = group.backend == "auto"
        groups.append(
            GroupExplanation(group.name, group.num_heads, backend, chosen, sorted_costs, crossover)
        )
    num_keys = (grid if context_grid is None else context_grid).num_tokens + num_prefix_tokens
    return Explanation(tuple(groups), grid.num_tokens + num_prefix_tokens, num_keys, batch, device)


def _scaled(grid: Grid, factor: float) -> Grid:
    shape = tuple(max(1, round(side * factor)) for side in grid.shape)
    return Grid(shape, grid.spacing, grid.periodic, grid.origin)


def _crossover(dense_is_cheapest: Callable[[float], bool], grid: Grid) -> Grid | None:
    """The grid from which on dense is not the cheapest, by halving on the logarithm of the sides' factor."""
    power = 1 / grid.num_axes
    shortest, longest = (1 / grid.num_tokens) ** power, (LONGEST / grid.num_tokens) ** power
    if dense_is_cheapest(longest):
        return None
    if not dense_is_cheapest(shortest):
        return _scaled(grid, shortest)
    while _scaled(grid, longest) != _scaled(grid, shortest) and longest / shortest > 1 + 1e-9:
        middle = math.sqrt(shortest * longest)
        shortest, longest = (middle, longest) if dense_is_cheapest(middle) else (shortest, middle)
    return _scaled(grid, longest)


def _crossover_line(group: GroupExplanation) -> str:
    if set(group.costs) == {"dense"}:
        return "only the dense backend can compute this"
    if group.crossover is None:
        return f"dense is the cheapest up to {LONGEST:,} tokens"
    if group.crossover <= 1:
        return "dense is never the cheapest"
    return f"dense is the cheapest below {group.crossover:,} tokens"
