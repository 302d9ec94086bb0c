"""Cases of the contracts: content kernel × relative kernel × backend, taken from the registries.

A new kernel or backend is tested without changing these files. The default kernel is combined with
every relative kernel. Kernels with code paths of their own are combined with one relative kernel
per path, and the other kernels with two relative kernels. Every backend is tested. Further factors
(dtype, mask, size) take turns. `make test-exhaustive` (TEKA_TESTS=exhaustive) tests everything.
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
    ClippedDistanceBias,
    ConcatenationKernel,
    ContentKernel,
    FeatureKernel,
    Fourier,
    Gaussian,
    JointSinusoidalBias,
    RelativeKernel,
    Rotary,
    Shaw,
    Taylor2,
    WindowBias,
)
from teka.functional.kernels import (
    DETERMINISTIC_KERNELS,
    LEARNED_KERNELS,
    RANDOM_KERNELS,
    make_content_kernel,
)
from teka.functional.positions import Positions
from teka.functional.relative import make_relative_kernel
from teka.functional.relative.biases import DecayRelativeKernel
from teka.functional.relative.relative_kernel import PositiveRelativeKernel
from teka.functional.relative.rotary import LEAST_WEIGHT
from teka.functional.relative.stationary import SeparableRelativeKernel, StationaryRelativeKernel

KERNEL_CLASSES: dict[str, type[ContentKernel]] = {
    **DETERMINISTIC_KERNELS,
    **RANDOM_KERNELS,
    **LEARNED_KERNELS,
}
RELATIVE_NAMES = (None, *RELATIVES)
# Device of the tests. Random tensors are drawn on the CPU, so that they are equal on every device.
DEVICE = os.environ.get("TEKA_DEVICE", "cpu")
EXHAUSTIVE = os.environ.get("TEKA_TESTS") == "exhaustive"
# Without features; the default; positive features; signed features; many exact features.
KERNELS_WITH_OWN_PATHS = ("softmax", "squared_relu", "positive", "trigonometric", "taylor2")
# One relative kernel per code path.
RELATIVES_OF_EACH_PATH = (
    *(None, "rotation", "rotation_joint", "clipped", "clipped_features", "generalized_quadratic"),
    *("fourier", "rotary", "decay", "shaw", "transformer_xl", "window"),
)
# Learned features have no code path of their own in a backend.
RELATIVES_OF_LEARNED = (None, "rotation", "clipped", "fourier", "rotary")
# The same for signed features and many features, with the relative kernels that change features.
RELATIVES_OF_MANY = (*RELATIVES_OF_LEARNED, "rotation_joint", "decay")
KernelOrRelative = TypeVar("KernelOrRelative", ContentKernel, RelativeKernel)
# The first argument of a test and its further arguments, by the name of the run.
Runs = dict[str, tuple[Any, dict[str, Any]]]


@dataclass(frozen=True)
class Case:
    kernel: str
    relative: str | None
    backend: str = "auto"

    def __str__(self) -> str:
        return f"{self.kernel}-{self.relative}-{self.backend}"

    @property
    def is_exactly_equivariant(self) -> bool:
        """True if every draw of the random features is equivariant, or if there is no draw."""
        relative = None if self.relative is None else RELATIVES[self.relative]
        return (
            relative is None
            or relative.equivariance == "exact"
            or self.kernel not in RANDOM_KERNELS
        )


def is_valid_pair(kernel: str, relative: str | None) -> bool:
    """Return True if the content kernel supports the relative kernel.

    The joint rotation needs the exponential kernel. Rotary needs two features, and weights that are
    normalized by their sum.
    """
    kind = None if relative is None else RELATIVES[relative]
    if kind is not None and issubclass(kind, JointSinusoidalBias):
        return KERNEL_CLASSES[kernel].estimates_softmax
    is_rotary = kind is not None and issubclass(kind, Rotary)
    return not (is_rotary and (kernel == "constant" or KERNEL_CLASSES[kernel].normalizes_by_count))


def is_weighted_mean(kernel: str) -> bool:
    """Return True if the outputs are normalized by the sum of the weights."""
    return not KERNEL_CLASSES[kernel].normalizes_by_count


def has_features(kernel: str) -> bool:
    """Return True if the kernel has features, so that linear attention is possible."""
    return issubclass(KERNEL_CLASSES[kernel], FeatureKernel)


def fast_backends(kernel: str, relative: str | None) -> set[str]:
    """Return the documented backends besides dense, on a grid without periodic axes."""
    kind = None if relative is None else RELATIVES[relative]
    if kind is WindowBias:
        return {"windows"}
    if not has_features(kernel):
        return set()
    if kind is None or issubclass(kind, JointSinusoidalBias | Rotary):
        return {"linear"}
    names = {Fourier: "linear", DecayRelativeKernel: "linear", ClippedDistanceBias: "rings"}
    names |= {SeparableRelativeKernel: "toeplitz", StationaryRelativeKernel: "fft"}
    return {name for base, name in names.items() if issubclass(kind, base)}


def causal_backends(kernel: str, relative: str | None) -> set[str]:
    """Return the documented backends of causal attention on a grid with one bounded axis."""
    line = {"rings"} if relative == "shaw" and has_features(kernel) else set()
    return {"dense"} | line | (fast_backends(kernel, relative) & {"linear", "rings"})


def cross_backends(kernel: str, relative: str | None, *, same_spacing: bool) -> set[str]:
    """Return the documented backends between two different bounded grids."""
    between = {"linear", "toeplitz", "fft"} if same_spacing else {"linear", "toeplitz"}
    if relative is not None and issubclass(RELATIVES[relative], DecayRelativeKernel):
        between -= {"linear"}  # the scan needs one grid
    return {"dense"} | (fast_backends(kernel, relative) & between)


def one_axis_backends(relative: str | None) -> set[str]:
    """Return the causal backends that need a grid with one axis."""
    scans = relative is not None and issubclass(RELATIVES[relative], DecayRelativeKernel)
    return {"rings", "linear"} if scans else {"rings"}


def is_supported(case: Case) -> bool:
    """Return True if the kernels can be combined and the backend supports them."""
    if not is_valid_pair(case.kernel, case.relative):
        return False
    return case.backend in ("auto", "dense") or case.backend in fast_backends(
        case.kernel, case.relative
    )


def is_signed(case: Case) -> bool:
    """Return True if weights may be negative, so that small denominators magnify rounding."""
    kind = KERNEL_CLASSES[case.kernel]
    signed = issubclass(kind, FeatureKernel) and (not kind.nonnegative or issubclass(kind, Taylor2))
    return signed or case.relative == "rotary"


def relatives_to_test(kernel: str) -> list[str | None]:
    """Return the relative kernels that a content kernel is tested with."""
    known = [
        name
        for name in RELATIVE_NAMES
        if kernel not in LEARNED_KERNELS or name in RELATIVES_OF_LEARNED
    ]
    if EXHAUSTIVE or kernel == "squared_relu":
        return known
    if kernel in KERNELS_WITH_OWN_PATHS:
        has_own_path = kernel in ("softmax", "positive")
        chosen = RELATIVES_OF_EACH_PATH if has_own_path else RELATIVES_OF_MANY
        return [name for name in known if name in chosen]
    possible = [name for name in known if is_valid_pair(kernel, name)]
    first = 2 * list(KERNELS).index(kernel)
    return [possible[(first + step) % len(possible)] for step in (0, 5)]


TESTED_PAIRS = [(kernel, relative) for kernel in KERNELS for relative in relatives_to_test(kernel)]
ALL_CASES = [
    Case(kernel, relative, backend)
    for kernel, relative in TESTED_PAIRS
    for backend in BACKENDS
    if backend != "auto" or kernel == "squared_relu" or EXHAUSTIVE
]
SUPPORTED_CASES = [case for case in ALL_CASES if is_supported(case)]
UNSUPPORTED_CASES = [case for case in ALL_CASES if not is_supported(case)]
FAST_CASES = [case for case in SUPPORTED_CASES if case.backend not in ("auto", "dense")]
PAIRS = [Case(*pair) for pair in TESTED_PAIRS if is_valid_pair(*pair)]
CAUSAL_CASES = [
    Case(pair.kernel, pair.relative, backend)
    for pair in PAIRS
    for backend in sorted(causal_backends(pair.kernel, pair.relative))
]
FAST_CAUSAL_CASES = [case for case in CAUSAL_CASES if case.backend != "dense"]
# A table counts cells, and so has nothing to say of positions off a grid.
PAIRS_WITH_POSITIONS = [pair for pair in PAIRS if pair.relative != "table"]


def for_each(runs: Mapping[str, Any]) -> Callable[[Callable[[Any], None]], Callable[[], None]]:
    """Run a quick test with each of these arguments in one pytest item. A failure names its key."""

    def decorate(test: Callable[[Any], None]) -> Callable[[], None]:
        def run() -> None:
            _run_each(test, {name: (argument, {}) for name, argument in runs.items()})

        return _named_as(test, run)

    return decorate


def parametrize_by_kernel(
    cases: Sequence[Case], **factors: Iterable[object]
) -> Callable[[Callable[..., None]], Callable]:
    """Run a test on all cases of a content kernel in one pytest item. A failure names its case.

    Each case is combined with one level of every factor. The levels are chosen so that each of them
    is combined with every kernel, relative kernel and backend. The exhaustive suite tests all
    combinations, and has one item per content kernel and relative kernel.

    Args:
        cases: The first argument of the test.
        factors: Levels of the further arguments of the test.
    """
    combinations = list(itertools.product(*factors.values()))
    counts: Counter[object] = Counter()
    items: dict[str, Runs] = {}
    for case in cases:
        parts = (("kernel", case.kernel), ("relative", case.relative), ("backend", case.backend))

        def pairs(
            combination: tuple[object, ...], parts: tuple[object, ...] = parts
        ) -> list[object]:
            levels = zip(factors, map(str, combination), strict=True)
            return list(itertools.product(parts, levels))

        def num_tests(combination: tuple[object, ...]) -> int:
            return sum(counts[pair] for pair in pairs(combination))

        for combination in combinations if EXHAUSTIVE else [min(combinations, key=num_tests)]:
            counts.update(pairs(combination))
            levels = dict(zip(factors, combination, strict=True))
            name = ", ".join(
                [str(case), *(f"{factor} {level}" for factor, level in levels.items())]
            )
            item = f"{case.kernel}-{case.relative}" if EXHAUSTIVE else case.kernel
            items.setdefault(item, {})[name] = (case, levels)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        def run(runs: Runs) -> None:
            _run_each(test, runs)

        parametrize = pytest.mark.parametrize("runs", items.values(), ids=list(items))
        return parametrize(_named_as(test, run))

    return decorate


def _named_as(test: Callable, item: Callable) -> Callable:
    item.__name__, item.__module__ = test.__name__, test.__module__
    return item


def _run_each(test: Callable[..., None], runs: Runs) -> None:
    for name, (argument, levels) in runs.items():
        if is_hypothesis_test(test):  # each run has its own examples
            seed(crc32(name.encode()))(test)
        try:
            test(argument, **levels)
        except (Exception, pytest.fail.Exception) as error:
            raise AssertionError(f"{name}: {error}") from error


def with_tensors(
    instance: KernelOrRelative, change: Callable[[Tensor], Tensor]
) -> tuple[KernelOrRelative, dict[str, Tensor]]:
    """Return a copy of a kernel with changed tensors, and these tensors by name."""
    assert dataclasses.is_dataclass(instance)
    values = {field.name: getattr(instance, field.name) for field in dataclasses.fields(instance)}
    tensors = {name: change(value) for name, value in values.items() if isinstance(value, Tensor)}
    return dataclasses.replace(instance, **tensors), tensors


def with_leaves(
    instance: KernelOrRelative, dtype: torch.dtype = torch.float64
) -> tuple[KernelOrRelative, dict[str, Tensor]]:
    """Return a copy of a kernel whose tensors require gradients, and these tensors by name."""
    return with_tensors(instance, lambda tensor: tensor.detach().to(DEVICE, dtype).requires_grad_())


def build_relative(
    name: str | None,
    *,
    heads: int,
    dim: int,
    num_axes: int,
    kernel: str | ContentKernel = "squared_relu",
    max_distance: int | None = None,
) -> RelativeKernel | None:
    """Return a relative kernel with random parameters.

    Args:
        name: Name of the relative kernel.
        heads: Number of heads.
        dim: Size of queries and keys.
        num_axes: Number of axes.
        kernel: Content kernel, whose features rotary rotates.
        max_distance: Largest distance of kernels with rings, windows or clipped offsets.
    """
    if name is None:
        return None
    relative = make_relative_kernel(name, heads=heads, dim=dim, num_axes=num_axes, kernel=kernel)
    if max_distance is not None and isinstance(relative, ClippedDistanceBias):
        assert dataclasses.is_dataclass(relative)
        embedding = getattr(relative, "distance_embedding")[: max_distance + 1]  # noqa: B009  # no name for pyright
        relative = dataclasses.replace(relative, distance_embedding=embedding)
    if (
        isinstance(relative, Shaw)
        and max_distance is not None
        and max_distance < relative.max_distance
    ):
        center = relative.max_distance
        relative = Shaw(relative.embedding[:, center - max_distance : center + max_distance + 1])
    if (
        isinstance(relative, WindowBias)
        and max_distance is not None
        and max_distance < relative.reach
    ):
        kept = slice(relative.reach - max_distance, relative.reach + max_distance + 1)
        relative = WindowBias(relative.bias[(slice(None), *[kept] * num_axes)])
    return on_device(relative)


def build_kernel(name: str, relative: RelativeKernel | None, dim: int) -> ContentKernel:
    """Return a content kernel. Learned features get random parameters."""
    kernel = make_content_kernel(
        name,
        dim + (relative.num_position_features if isinstance(relative, JointSinusoidalBias) else 0),
    )
    return on_device(with_noise(kernel) if name in LEARNED_KERNELS else kernel)


def on_device(instance: KernelOrRelative) -> KernelOrRelative:
    """Return a copy of a kernel on the device of the tests."""
    return with_tensors(instance, lambda tensor: tensor.to(DEVICE))[0]


def with_noise(kernel: ContentKernel) -> ContentKernel:
    """Return a copy of a kernel with noise added to its tensors, as if they were trained."""
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(0))
    return with_tensors(kernel, lambda tensor: tensor + 0.5 * draw(tensor.shape).to(tensor.device))[
        0
    ]


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
    """Return query, key and value with elements ~ N(0, scale²) and different sizes."""
    generator = torch.Generator().manual_seed(seed)
    inputs = []
    for size in (dim, dim, dim_value):
        shape = (batch, heads, num_tokens, size)
        tensor = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
        inputs.append(tensor.to(DEVICE, dtype))
    return inputs


def reference_attention(
    inputs: list[Tensor],
    kernel: ContentKernel,
    relative: RelativeKernel | None,
    positions: Positions,
    *,
    scale: float,
    keep: Tensor | None = None,
) -> Tensor:
    """Evaluate attention from the weights of all pairs, without a backend and without rescaling.

    Args:
        inputs: Query, key and value.
        kernel: Content kernel, fitted if necessary.
        relative: Relative kernel.
        positions: Positions of queries and keys.
        scale: Factor of qᵀk.
        keep: Mask of pairs, shape (B or 1, L_q or 1, L_k). A query without keys has output 0.
    """
    query, key, value = inputs
    num_prefix = positions.num_prefix_tokens
    relative = (
        None if relative is None else relative.adapt_to_kernel(kernel).adapt_to_positions(positions)
    )
    if isinstance(relative, JointSinusoidalBias):
        query, key = relative.append_sinusoids(query, key, positions, scale=scale)
        relative, scale = None, 1.0
    query_features, key_features = math.sqrt(scale) * query, math.sqrt(scale) * key
    if isinstance(kernel, FeatureKernel):
        query_features, key_features = (
            kernel.query_features(query, scale=scale),
            kernel.key_features(key, scale=scale),
        )
    numerator = denominator = query_features @ key_features.transpose(-2, -1)
    if isinstance(relative, Rotary):
        query_positions, key_positions = (
            side.coordinates(query.device) for side in (positions, positions.key_positions)
        )
        rotated = (
            relative.rotate(query_features[:, :, num_prefix:], query_positions),
            relative.rotate(key_features[:, :, num_prefix:], key_positions),
        )
        numerator = denominator.clone()
        numerator[:, :, num_prefix:, num_prefix:] = rotated[0] @ rotated[1].transpose(-2, -1)
    if isinstance(kernel, ConcatenationKernel):
        numerator = denominator = torch.relu(
            scale * (query.sum(-1)[..., :, None] + key.sum(-1)[..., None, :])
        )
    elif isinstance(kernel, Gaussian):
        numerator = denominator = torch.exp(-scale / 2 * torch.cdist(query, key).square())
    elif not isinstance(kernel, FeatureKernel):
        numerator = denominator = numerator.exp()
    elif isinstance(relative, Rotary):
        key_lengths = relative.pair_lengths(key_features)
        lengths = relative.pair_lengths(query_features) @ key_lengths.mT
        match relative.normalizer:
            case "nonnegative":
                numerator = denominator = ((1 + LEAST_WEIGHT) * lengths + numerator) / 2
            case "mixed" | "lengths" as normalizer:
                share = torch.zeros_like(lengths)
                share[:, :, num_prefix:, num_prefix:] = (
                    relative.length_share if normalizer == "mixed" else 1.0
                )
                denominator = (1 - share) * denominator + share * lengths
    if kernel.normalizes_by_count:
        denominator = torch.ones_like(numerator)
    if isinstance(relative, PositiveRelativeKernel):
        query_positions, key_positions = (
            side.coordinates(query.device) for side in (positions, positions.key_positions)
        )
        offsets = query_positions[..., :, None, :] - key_positions[..., None, :, :]
        offsets = offsets if positions.grid is None else positions.grid.wrap(offsets)
        factor = relative.log_weights(query[:, :, num_prefix:], offsets, scale=scale).exp()
        factor = pad(factor, (num_prefix, 0, num_prefix, 0), value=1.0)
        numerator, denominator = numerator * factor, denominator * factor
    if keep is not None:
        numerator, denominator = (
            weights.masked_fill(~keep[:, None], 0.0) for weights in (numerator, denominator)
        )
    total = denominator.sum(dim=-1, keepdim=True)
    return numerator @ value / total.masked_fill(total == 0, 1.0)


def flex_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score_mod: Callable[..., Tensor],
    block_mask: Any,
    scale: float,
) -> Tensor:
    """Evaluate FlexAttention without compiling it."""
    products = scale * query @ key.transpose(-2, -1)
    indices = [torch.arange(side, device=query.device) for side in products.shape]
    scores = score_mod(products, *torch.meshgrid(*indices, indexing="ij"))
    assert block_mask is None or block_mask.kv_indices.device == query.device
    return scores.softmax(dim=-1) @ value


def draw_mask(batch: int, num_tokens: int, seed: int = 0) -> Tensor:
    """Return a random key mask with at least one key per sample."""
    generator = torch.Generator().manual_seed(seed + 101)
    mask = torch.rand(batch, num_tokens, generator=generator) < 0.6
    kept = torch.randint(num_tokens, (batch,), generator=generator)
    mask[torch.arange(batch), kept] = True
    return mask.to(DEVICE)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return max |actual − expected| / max(1, max |expected|), or infinity for NaN."""
    error = (actual - expected).abs().max() / expected.abs().max().clamp_min(1.0)
    return float(error.detach().nan_to_num(torch.inf))  # Python's `max` would ignore NaN


def roll_tokens(grid: Grid, tokens: Tensor, shift: tuple[int, ...]) -> Tensor:
    """Roll tokens (…, L, d) of a periodic grid."""
    flat = tokens.reshape(-1, *tokens.shape[-2:])
    return grid.flatten(grid.roll(grid.unflatten(flat), shift)).reshape(tokens.shape)
