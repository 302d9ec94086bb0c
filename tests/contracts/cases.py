"""Content kernel × relative kernel × backend, from the registries: what is added later is covered by its name.

The default kernel meets every relative kernel, the kernels with paths of their own one relative kernel of each path, and
the others, whose features are like any to a backend, two relative kernels each, always on every backend. Every second
factor (dtype, mask, size) is met in turn. `make test-exhaustive` (TEKA_TESTS=exhaustive) crosses everything with
everything.
"""

import dataclasses
import itertools
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from zlib import crc32

import pytest
import torch
from hypothesis import is_hypothesis_test, seed
from torch import Tensor
from torch.nn.functional import pad

from teka import Grid
from teka.functional import (
    BACKENDS,
    KERNELS,
    RELATIVES,
    Concatenation,
    FeatureKernel,
    Gaussian,
    Kernel,
    Relative,
    Rotary,
    RotationJoint,
    Shaw,
    Taylor2,
    Window,
)
from teka.functional.kernels import (
    DETERMINISTIC_KERNELS,
    LEARNED_KERNELS,
    RANDOM_KERNELS,
    make_kernel,
)
from teka.functional.positions import Positions
from teka.functional.relative import make_relative
from teka.functional.relative.base import FactorRelative
from teka.functional.relative.biases import DecayRelative
from teka.functional.relative.clipped import RingRelative
from teka.functional.relative.fourier import WaveRelative
from teka.functional.relative.rotary import LEAST_WEIGHT
from teka.functional.relative.stationary import SeparableRelative, StationaryRelative

KERNEL_CLASSES: dict[str, type[Kernel]] = {
    **DETERMINISTIC_KERNELS,
    **RANDOM_KERNELS,
    **LEARNED_KERNELS,
}
RELATIVE_NAMES = (None, *RELATIVES)
# Where the tests that can run elsewhere have their tensors; drawn on the CPU, and so the same everywhere.
DEVICE = os.environ.get("TEKA_DEVICE", "cpu")
EXHAUSTIVE = os.environ.get("TEKA_TESTS") == "exhaustive"
# Those whose paths differ: no features; the default, fused; positive; of both signs; many exact features.
CROSSED_KERNELS = ("softmax", "squared_relu", "positive", "trigonometric", "taylor2")
# One relative kernel of each way of computing, for the kernels with paths of their own.
RELATIVES_OF_EACH_PATH = (
    *(None, "rotation", "rotation_joint", "clipped", "clipped_features", "generalized_quadratic"),
    *("fourier", "rotary", "decay", "shaw", "transformer_xl", "window"),
)
# To a backend learned features are features like others: they meet one relative kernel of each kind, and each backend.
RELATIVES_OF_LEARNED = (None, "rotation", "clipped", "fourier", "rotary")
# So do features of both signs and many features, and besides those that change the features.
RELATIVES_OF_MANY = (*RELATIVES_OF_LEARNED, "rotation_joint", "decay")
Parametrised = TypeVar("Parametrised", Kernel, Relative)
# By name the first argument of a test, and further ones.
Runs = dict[str, tuple[Any, dict[str, Any]]]


@dataclass(frozen=True)
class Case:
    kernel: str
    relative: str | None
    backend: str = "auto"

    def __str__(self) -> str:
        return f"{self.kernel}-{self.relative}-{self.backend}"

    @property
    def is_equivariant_for_every_draw(self) -> bool:
        """Whether the relative kernel declares so, or there is no draw."""
        relative = None if self.relative is None else RELATIVES[self.relative]
        return (
            relative is None
            or relative.equivariance == "exact"
            or self.kernel not in RANDOM_KERNELS
        )


def pair_exists(kernel: str, relative: str | None) -> bool:
    """Only exp turns a sum of inner products into a product, and only two features or more can be rotated."""
    kind = None if relative is None else RELATIVES[relative]
    if kind is not None and issubclass(kind, RotationJoint):
        return KERNEL_CLASSES[kernel].estimates_softmax
    is_rotary = kind is not None and issubclass(kind, Rotary)
    return not (is_rotary and (kernel == "constant" or KERNEL_CLASSES[kernel].normalizes_by_count))


def averages(kernel: str) -> bool:
    """Whether outputs are over the sum of their weights."""
    return not KERNEL_CLASSES[kernel].normalizes_by_count


def has_features(kernel: str) -> bool:
    """Whether sums over keys can be made once for all queries."""
    return issubclass(KERNEL_CLASSES[kernel], FeatureKernel)


def fast_backends(kernel: str, relative: str | None) -> set[str]:
    """What the documentation promises besides dense, on a grid without periodic axes."""
    kind = None if relative is None else RELATIVES[relative]
    if kind is Window:
        return {"windows"}
    if not has_features(kernel):
        return set()
    if kind is None or issubclass(kind, RotationJoint | Rotary):
        return {"linear"}
    names = {WaveRelative: "linear", DecayRelative: "linear", RingRelative: "rings", Shaw: "rings"}
    names |= {SeparableRelative: "toeplitz", StationaryRelative: "fft"}
    return {name for base, name in names.items() if issubclass(kind, base)}


def causal_backends(kernel: str, relative: str | None) -> set[str]:
    """What the documentation promises where no query sees a later key, on a grid of one axis that is not periodic."""
    return {"dense"} | (fast_backends(kernel, relative) & {"linear", "rings"})


def cross_backends(kernel: str, relative: str | None, *, of_one_spacing: bool) -> set[str]:
    """What the documentation promises between two bounded grids that are not the same."""
    between = {"linear", "toeplitz", "fft"} if of_one_spacing else {"linear", "toeplitz"}
    if relative is not None and issubclass(RELATIVES[relative], DecayRelative):
        between -= {"linear"}  # it scans one grid
    return {"dense"} | (fast_backends(kernel, relative) & between)


def only_on_a_line(relative: str | None) -> set[str]:
    """The causal backends that go along a line, and not between any positions."""
    scans = relative is not None and issubclass(RELATIVES[relative], DecayRelative)
    return {"rings", "linear"} if scans else {"rings"}


def is_possible(case: Case) -> bool:
    """Whether the pair exists and the backend can compute it."""
    if not pair_exists(case.kernel, case.relative):
        return False
    return case.backend in ("auto", "dense") or case.backend in fast_backends(
        case.kernel, case.relative
    )


def is_signed(case: Case) -> bool:
    """Whether terms of both signs can cancel, or bring a denominator near 0, and so magnify rounding and gradients."""
    kind = KERNEL_CLASSES[case.kernel]
    signed = issubclass(kind, FeatureKernel) and (not kind.nonnegative or issubclass(kind, Taylor2))
    return signed or case.relative == "rotary"


def met_relatives(kernel: str) -> list[str | None]:
    """The relative kernels that a content kernel meets in the tests."""
    known = [
        name
        for name in RELATIVE_NAMES
        if kernel not in LEARNED_KERNELS or name in RELATIVES_OF_LEARNED
    ]
    if EXHAUSTIVE or kernel == "squared_relu":
        return known
    if kernel in CROSSED_KERNELS:
        has_own_path = kernel in ("softmax", "positive")
        chosen = RELATIVES_OF_EACH_PATH if has_own_path else RELATIVES_OF_MANY
        return [name for name in known if name in chosen]
    possible = [name for name in known if pair_exists(kernel, name)]
    first = 2 * list(KERNELS).index(kernel)
    return [possible[(first + step) % len(possible)] for step in (0, 5)]


CROSSED = [(kernel, relative) for kernel in KERNELS for relative in met_relatives(kernel)]
ALL = [
    Case(kernel, relative, backend)
    for kernel, relative in CROSSED
    for backend in BACKENDS
    if backend != "auto" or kernel == "squared_relu" or EXHAUSTIVE
]
POSSIBLE = [case for case in ALL if is_possible(case)]
IMPOSSIBLE = [case for case in ALL if not is_possible(case)]
FAST = [case for case in POSSIBLE if case.backend not in ("auto", "dense")]
PAIRS = [Case(*pair) for pair in CROSSED if pair_exists(*pair)]
CAUSAL = [
    Case(pair.kernel, pair.relative, backend)
    for pair in PAIRS
    for backend in sorted(causal_backends(pair.kernel, pair.relative))
]
FAST_CAUSAL = [case for case in CAUSAL if case.backend != "dense"]
# A table counts cells, and so has nothing to say of positions off a grid.
PLACEABLE_PAIRS = [pair for pair in PAIRS if pair.relative != "table"]


def each(runs: Mapping[str, Any]) -> Callable[[Callable[[Any], None]], Callable[[], None]]:
    """Run a quick test with each of these arguments in one item; a failure names its key."""

    def decorate(test: Callable[[Any], None]) -> Callable[[], None]:
        def of_all() -> None:
            _run_each(test, {name: (one, {}) for name, one in runs.items()})

        return _named_as(test, of_all)

    return decorate


def together(
    cases: Sequence[Case], **factors: Iterable[object]
) -> Callable[[Callable[..., None]], Callable]:
    """Run a test on the cases of each content kernel in one item; a failure names its case.

    Args:
        cases: The test's first argument. Each case meets one combination of the factors, so chosen that pairwise every
            level meets every level, or all in the exhaustive suite, where an item is of one relative kernel too.
        factors: The levels of further arguments.
    """
    combinations = list(itertools.product(*factors.values()))
    met: Counter[object] = Counter()
    items: dict[str, Runs] = {}
    for case in cases:
        of_case = (("kernel", case.kernel), ("relative", case.relative), ("backend", case.backend))

        def pairs(
            combination: tuple[object, ...], of_case: tuple[object, ...] = of_case
        ) -> list[object]:
            return list(
                itertools.product(of_case, zip(factors, map(str, combination), strict=True))
            )

        def often(combination: tuple[object, ...]) -> int:
            return sum(met[pair] for pair in pairs(combination))

        for combination in combinations if EXHAUSTIVE else [min(combinations, key=often)]:
            met.update(pairs(combination))
            levels = dict(zip(factors, combination, strict=True))
            name = ", ".join(
                [str(case), *(f"{factor} {level}" for factor, level in levels.items())]
            )
            item = f"{case.kernel}-{case.relative}" if EXHAUSTIVE else case.kernel
            items.setdefault(item, {})[name] = (case, levels)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        def of_kernel(runs: Runs) -> None:
            _run_each(test, runs)

        return pytest.mark.parametrize("runs", items.values(), ids=list(items))(
            _named_as(test, of_kernel)
        )

    return decorate


def _named_as(test: Callable, item: Callable) -> Callable:
    item.__name__, item.__module__ = test.__name__, test.__module__
    return item


def _run_each(test: Callable[..., None], runs: Runs) -> None:
    for name, (one, levels) in runs.items():
        if is_hypothesis_test(test):  # examples of its own for each
            seed(crc32(name.encode()))(test)
        try:
            test(one, **levels)
        except (Exception, pytest.fail.Exception) as error:
            raise AssertionError(f"{name}: {error}") from error


def with_tensors(
    instance: Parametrised, change: Callable[[Tensor], Tensor]
) -> tuple[Parametrised, dict[str, Tensor]]:
    """The instance with every tensor of it changed, and the new ones by name."""
    assert dataclasses.is_dataclass(instance)
    values = {field.name: getattr(instance, field.name) for field in dataclasses.fields(instance)}
    tensors = {name: change(value) for name, value in values.items() if isinstance(value, Tensor)}
    return dataclasses.replace(instance, **tensors), tensors


def with_leaves(
    instance: Parametrised, dtype: torch.dtype = torch.float64
) -> tuple[Parametrised, dict[str, Tensor]]:
    """The instance with every tensor of it a leaf that takes a gradient, and those leaves by name."""
    return with_tensors(instance, lambda one: one.detach().to(DEVICE, dtype).requires_grad_())


def build_relative(
    name: str | None,
    *,
    heads: int,
    dim: int,
    num_axes: int,
    kernel: str | Kernel = "squared_relu",
    max_distance: int | None = None,
) -> Relative | None:
    """A relative kernel with random parameters, with fewer rings if it has rings.

    Args:
        name: Its name.
        heads: Number of heads.
        dim: Size of queries and keys.
        num_axes: Number of axes.
        kernel: The content kernel, whose features rotary turns.
        max_distance: The last ring.
    """
    if name is None:
        return None
    relative = make_relative(name, heads=heads, dim=dim, num_axes=num_axes, kernel=kernel)
    if max_distance is not None and isinstance(relative, RingRelative):
        assert dataclasses.is_dataclass(relative)
        embedding = getattr(relative, "distance_embedding")[: max_distance + 1]  # noqa: B009  # no name for pyright
        relative = dataclasses.replace(relative, distance_embedding=embedding)
    if (
        isinstance(relative, Shaw)
        and max_distance is not None
        and max_distance < relative.max_distance
    ):
        fewer = slice(
            relative.max_distance - max_distance, relative.max_distance + max_distance + 1
        )
        relative = Shaw(relative.embedding[:, fewer])
    if isinstance(relative, Window) and max_distance is not None and max_distance < relative.reach:
        fewer = slice(relative.reach - max_distance, relative.reach + max_distance + 1)
        relative = Window(relative.bias[(slice(None), *[fewer] * num_axes)])
    return on_device(relative)


def build_kernel(name: str, relative: Relative | None, dim: int) -> Kernel:
    """A content kernel; random features have room for the positions of the joint form, learned ones have learned."""
    kernel = make_kernel(
        name, dim + (relative.num_position_features if isinstance(relative, RotationJoint) else 0)
    )
    return on_device(with_noise(kernel) if name in LEARNED_KERNELS else kernel)


def on_device(instance: Parametrised) -> Parametrised:
    """The instance with its tensors on the device of the tests."""
    return with_tensors(instance, lambda one: one.to(DEVICE))[0]


def with_noise(kernel: Kernel) -> Kernel:
    """The kernel with a random number added to every entry of its tensors, as if it had learned."""
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(0))
    return with_tensors(kernel, lambda one: one + 0.5 * draw(one.shape).to(one.device))[0]


def draw_inputs(
    num_tokens: int,
    *,
    batch: int = 2,
    heads: int = 3,
    dim: int = 5,
    dim_value: int = 4,
    seed: int = 0,
    scale: float = 0.7,
    dtype: torch.dtype = torch.float64,
) -> list[Tensor]:
    """Query, key and value ~ N(0, scale²); sizes that are all different."""
    generator = torch.Generator().manual_seed(seed)
    sizes = ((batch, heads, num_tokens, size) for size in (dim, dim, dim_value))
    drawn = (scale * torch.randn(one, generator=generator, dtype=torch.float64) for one in sizes)
    return [one.to(DEVICE, dtype) for one in drawn]


def explicit_attention(
    inputs: list[Tensor],
    kernel: Kernel,
    relative: Relative | None,
    placement: Positions,
    *,
    scale: float,
    keep: Tensor | None = None,
) -> Tensor:
    """The one equation from the matrices κ and c of every pair, with no backend and nothing taken out of any row.

    Args:
        inputs: Query, key and value.
        kernel: The content kernel, fitted if it is to be.
        relative: The relative kernel.
        placement: Where queries and keys are.
        scale: Factor of qᵀk.
        keep: True for the pairs that count, shape (B or 1, L_q or 1, L_k); a query without any gets 0.
    """
    query, key, value = inputs
    first = placement.num_prefix_tokens
    relative = None if relative is None else relative.for_kernel(kernel).for_positions(placement)
    if isinstance(relative, RotationJoint):
        query, key = relative.concatenate(query, key, placement, scale=scale)
        relative, scale = None, 1.0
    left, right = math.sqrt(scale) * query, math.sqrt(scale) * key
    if isinstance(kernel, FeatureKernel):
        left, right = (
            kernel.query_features(query, scale=scale),
            kernel.key_features(key, scale=scale),
        )
    above = below = left @ right.transpose(-2, -1)
    if isinstance(relative, Rotary):
        here, there = (sites.places(query.device) for sites in (placement, placement.of_keys))
        rotated = (
            relative.rotate(left[:, :, first:], here),
            relative.rotate(right[:, :, first:], there),
        )
        above = below.clone()
        above[:, :, first:, first:] = rotated[0] @ rotated[1].transpose(-2, -1)
    if isinstance(kernel, Concatenation):
        above = below = torch.relu(
            scale * (query.sum(-1)[..., :, None] + key.sum(-1)[..., None, :])
        )
    elif isinstance(kernel, Gaussian):
        above = below = torch.exp(-scale / 2 * torch.cdist(query, key).square())
    elif not isinstance(kernel, FeatureKernel):
        above = below = above.exp()
    elif isinstance(relative, Rotary):
        lengths = relative.lengths(left) @ relative.lengths(right).transpose(-2, -1)
        match relative.normalizer:
            case "nonnegative":
                above = below = ((1 + LEAST_WEIGHT) * lengths + above) / 2
            case "mixed" | "lengths" as normalizer:
                share = torch.zeros_like(lengths)
                share[:, :, first:, first:] = (
                    relative.length_share if normalizer == "mixed" else 1.0
                )
                below = (1 - share) * below + share * lengths
    if kernel.normalizes_by_count:
        below = torch.ones_like(above)
    if isinstance(relative, FactorRelative):
        here, there = (sites.places(query.device) for sites in (placement, placement.of_keys))
        offsets = here[..., :, None, :] - there[..., None, :, :]
        offsets = offsets if placement.grid is None else placement.grid.wrap(offsets)
        factor = relative.log_kernel(query[:, :, first:], offsets, scale=scale).exp()
        factor = pad(factor, (first, 0, first, 0), value=1.0)
        above, below = above * factor, below * factor
    if keep is not None:
        above, below = (part.masked_fill(~keep[:, None], 0.0) for part in (above, below))
    total = below.sum(dim=-1, keepdim=True)
    return above @ value / total.masked_fill(total == 0, 1.0)


def flex_formula(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score_mod: Callable[..., Tensor],
    block_mask: Any,
    scale: float,
) -> Tensor:
    """What FlexAttention computes of its arguments, without compiling them."""
    products = scale * query @ key.transpose(-2, -1)
    places = [torch.arange(side, device=query.device) for side in products.shape]
    scores = score_mod(products, *torch.meshgrid(*places, indexing="ij"))
    assert block_mask is None or block_mask.kv_indices.device == query.device
    return scores.softmax(dim=-1) @ value


def draw_mask(batch: int, num_tokens: int, seed: int = 0) -> Tensor:
    """A mask that keeps at least one key of every sample."""
    generator = torch.Generator().manual_seed(seed + 101)
    mask = torch.rand(batch, num_tokens, generator=generator) < 0.6
    kept = torch.randint(num_tokens, (batch,), generator=generator)
    mask[torch.arange(batch), kept] = True
    return mask.to(DEVICE)


def relative_change(changed: Tensor, reference: Tensor) -> float:
    """Largest difference over the largest number of the reference, the latter at least 1; of NaN infinite."""
    change = (changed - reference).abs().max() / reference.abs().max().clamp_min(1.0)
    return float(change.detach().nan_to_num(torch.inf))  # `max` of Python passes NaN over


def roll_tokens(grid: Grid, tokens: Tensor, shift: tuple[int, ...]) -> Tensor:
    """Tokens (…, L, d) of a periodic grid after `Grid.roll`."""
    flat = tokens.reshape(-1, *tokens.shape[-2:])
    return grid.flatten(grid.roll(grid.unflatten(flat), shift)).reshape(tokens.shape)
