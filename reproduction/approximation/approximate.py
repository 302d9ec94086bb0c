"""Errors of random features against softmax: of attention's output, and of its weights over a ball of queries."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn.functional import normalize

from teka.audit.statistics.estimate import mean_over_seeds
from teka.checks import check_name, check_sizes, is_positive
from teka.errors import wrong_value
from teka.functional import PROJECTIONS, Kernel, Softmax, draw_projection
from teka.functional.kernels import RANDOM_KERNELS
from teka.provenance import provenance

FILE = "approximation.json"


@dataclass(frozen=True)
class Approximation:
    """What is estimated, by what, and how often.

    Args:
        dim: Size d of queries and keys.
        tokens: Number of queries, of keys and of values.
        sizes: Standard deviations of the entries of normal queries and keys, for the error of attention's output.
        radii: Radii of the balls in which scaled queries and keys x = d^(−1/4) q lie, for the error of the weights.
        num_features: Lengths m of the feature maps.
        kernels: Kernels with random features.
        projections: How these are drawn.
        draws: Projections of each, all on the same queries, keys and values.
        seed: Seed of the tokens and, with the number of the draw, of every projection.
    """

    dim: int = 32
    tokens: int = 256
    sizes: tuple[float, ...] = (0.25, 0.5, 1.0)
    radii: tuple[float, ...] = (0.5, 1.0, 2.0)
    num_features: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024)
    kernels: tuple[str, ...] = tuple(RANDOM_KERNELS)
    projections: tuple[str, ...] = tuple(PROJECTIONS)
    draws: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        check_sizes({"dim": self.dim, "tokens": self.tokens})
        check_sizes({"draws": self.draws}, 2)
        check_sizes({"seed": self.seed}, 0)
        for argument in ("sizes", "radii", "num_features", "kernels", "projections"):
            given = getattr(self, argument)
            if not given or len(set(given)) < len(given):
                raise wrong_value(argument, list(given), "one value or more, each once")
        for argument in ("sizes", "radii"):
            if not all(map(is_positive, getattr(self, argument))):
                raise wrong_value(argument, list(getattr(self, argument)), "finite numbers above 0")
        for number in self.num_features:
            check_sizes({"num_features": number}, 2)  # two features a draw
        for argument, known in (("kernels", RANDOM_KERNELS), ("projections", PROJECTIONS)):
            for name in getattr(self, argument):
                check_name(argument, name, known)


def approximate(
    settings: Approximation,
    *,
    command: str = "",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """The errors of every kernel, way of drawing and number of features, with 95 % intervals over draws, for JSON.

    A row of "output" is the error ‖ÂV − AV‖ / ‖AV‖ of attention's output on normal tokens of a size, all queries
    together; "of_mean" is that of the plain mean of the values, which looks at no query. A row of "ball" is the largest
    total variation ½ Σ_j |â_ij − a_ij| of a query's weights, over queries and keys that fill a ball. Everything is in
    float64 and by every pair. In the mean over draws both fall as m^(−1/2) once m is large.

    Source: Choromanski et al. 2021, Figure 4 and Theorem 4, of normalised attention.
    """
    rows: dict[str, list[dict[str, Any]]] = {"output": [], "ball": [], "of_mean": []}
    kinds = [
        *(("output", size) for size in settings.sizes),
        *(("ball", radius) for radius in settings.radii),
    ]
    ways = list(itertools.product(settings.kernels, settings.projections, settings.num_features))
    done, total = 0, len(kinds) * len(ways)
    for kind, size in kinds:
        query, key, value = draw_tokens(kind, size, settings)
        truth = weights_of(Softmax(), query, key)
        exact = truth @ value
        if kind == "output":
            of_mean = (value.mean(dim=-2, keepdim=True) - exact).norm() / exact.norm()
            rows["of_mean"].append({"size": size, "error": float(of_mean)})
        for kernel, projection, num_features in ways:
            errors = []
            for estimate in draw_kernels(kernel, projection, num_features, settings):
                weights = weights_of(estimate, query, key)
                if kind == "output":
                    errors.append(float((weights @ value - exact).norm() / exact.norm()))
                else:
                    errors.append(float((weights - truth).abs().sum(dim=-1).max()) / 2)
            found = mean_over_seeds(errors)
            row = {
                "kernel": kernel,
                "projection": projection,
                "num_features": num_features,
                "size": size,
            }
            square = sum(error**2 for error in errors) / len(errors)
            errors_of = {
                "error": found.value,
                "lower": found.lower,
                "upper": found.upper,
                "mean_square": square,
            }
            rows[kind].append({**row, **errors_of})
            done += 1
            progress(done, total)
    return {**rows, "settings": asdict(settings), **provenance(command)}


def draw_tokens(kind: str, size: float, settings: Approximation) -> list[Tensor]:
    """Query, key and value of one head: normal, or within a ball with lengths uniform up to its radius."""
    generator = Generator().manual_seed(settings.seed)
    shape = (3, 1, 1, settings.tokens, settings.dim)
    query, key, value = torch.randn(shape, dtype=torch.float64, generator=generator)
    if kind == "output":
        return [size * query, size * key, value]
    lengths = torch.rand(2, 1, 1, settings.tokens, 1, dtype=torch.float64, generator=generator)
    lengths[..., 0, :] = 1.0  # one on the sphere itself
    radius = size * settings.dim**0.25
    query, key = (
        radius * length * normalize(one, dim=-1)
        for one, length in zip((query, key), lengths, strict=True)
    )
    return [query, key, value]


def draw_kernels(
    kernel: str, projection: str, num_features: int, settings: Approximation
) -> Iterator[Kernel]:
    """The kernel with each of its draws, of m features in all: two a draw make half as many draws."""
    kind = RANDOM_KERNELS[kernel]
    for draw in range(settings.draws):
        generator = Generator().manual_seed(settings.seed + 1_000_003 * (draw + 1))
        count = max(1, num_features // kind.features_per_draw)
        yield kind(draw_projection(count, settings.dim, generator=generator, projection=projection))


def weights_of(kernel: Kernel, query: Tensor, key: Tensor) -> Tensor:
    """The weights of every pair, which add up to 1 for each query."""
    scale = 1 / math.sqrt(query.shape[-1])
    if kernel.features is not None:
        kernel = kernel.features.fitted(query, key, scale=scale, query_mask=None, key_mask=None)
    weights = kernel.weights(query, key, scale=scale)
    return weights / weights.sum(dim=-1, keepdim=True)
