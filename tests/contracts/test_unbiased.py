import math
from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Generator, Tensor

from teka.functional import (
    PROJECTIONS,
    FeatureKernel,
    HyperbolicFeatures,
    OptimalPositiveFeatures,
    PositiveFeatures,
    TrigonometricFeatures,
    draw_projection,
)
from teka.functional.kernels import RANDOM_KERNELS

SCALE, DIM = 0.6, 6


def positive(kernel: FeatureKernel, vectors: Tensor) -> Tensor:
    """exp(wᵀx − ‖x‖²/2) / √m."""
    assert isinstance(kernel, PositiveFeatures)
    x = math.sqrt(SCALE) * vectors
    exponent = x @ kernel.projection.T - x.square().sum(dim=-1, keepdim=True) / 2
    return exponent.exp() / math.sqrt(len(kernel.projection))


def trigonometric(kernel: FeatureKernel, vectors: Tensor) -> Tensor:
    """exp(‖x‖²/2) · [sin(wᵀx), cos(wᵀx)] / √m."""
    assert isinstance(kernel, TrigonometricFeatures)
    x = math.sqrt(SCALE) * vectors
    phase = x @ kernel.projection.T
    waves = torch.cat([phase.sin(), phase.cos()], dim=-1)
    return (
        (x.square().sum(dim=-1, keepdim=True) / 2).exp() * waves / math.sqrt(len(kernel.projection))
    )


def hyperbolic(kernel: FeatureKernel, vectors: Tensor) -> Tensor:
    """exp(±wᵀx − ‖x‖²/2) / √(2m)."""
    assert isinstance(kernel, HyperbolicFeatures)
    x = math.sqrt(SCALE) * vectors
    phase = x @ kernel.projection.T
    exponent = torch.cat([phase, -phase], dim=-1) - x.square().sum(dim=-1, keepdim=True) / 2
    return exponent.exp() / math.sqrt(2 * len(kernel.projection))


def optimal(kernel: FeatureKernel, vectors: Tensor) -> Tensor:
    """(1 − 4A)^(d/4) exp(A‖w‖² + √(1 − 4A) wᵀx − ‖x‖²/2) / √m, for unit-normal queries and keys."""
    assert isinstance(kernel, OptimalPositiveFeatures)
    x = math.sqrt(SCALE) * vectors
    s = 2 * DIM * SCALE
    rho = 2 * DIM / (math.sqrt((2 * s + DIM) ** 2 + 8 * DIM * s) + 2 * s + DIM)
    a = (1 - 1 / rho) / 8
    squares = kernel.projection.square().sum(dim=-1)
    exponent = (
        a * squares
        + math.sqrt(1 - 4 * a) * x @ kernel.projection.T
        - x.square().sum(dim=-1, keepdim=True) / 2
    )
    return (1 - 4 * a) ** (DIM / 4) * exponent.exp() / math.sqrt(len(kernel.projection))


# Draws of fixed norm are biased.
UNBIASED_PROJECTIONS = [projection for projection in PROJECTIONS if projection != "fixed_norm"]
# Features without a common factor taken out.
UNNORMALISED: dict[str, Callable[[FeatureKernel, Tensor], Tensor]] = {
    "positive": positive,
    "hyperbolic": hyperbolic,
    "optimal": optimal,
    "trigonometric": trigonometric,
}


def draw(name: str, num_features: int, projection: str, generator: Generator) -> FeatureKernel:
    return RANDOM_KERNELS[name](
        draw_projection(num_features, DIM, generator=generator, projection=projection)
    )


def draw_vectors(num_tokens: int, seed: int) -> Tensor:
    size = (2, 3, num_tokens, DIM)
    return 0.35 * torch.randn(size, dtype=torch.float64, generator=Generator().manual_seed(seed))


@cache
def estimates(
    name: str, num_features: int, projection: str, num_draws: int
) -> tuple[Tensor, Tensor]:
    """Return the estimates of every draw, and the exact kernel exp(scale · qᵀk)."""
    generator = Generator().manual_seed(0)
    query, key = draw_vectors(5, seed=1), draw_vectors(7, seed=2)
    products = []
    for _ in range(num_draws):
        kernel = draw(name, num_features, projection, generator)
        features = UNNORMALISED[name]
        products.append(features(kernel, query) @ features(kernel, key).transpose(-2, -1))
    return torch.stack(products), torch.exp(SCALE * query @ key.transpose(-2, -1))


def test_every_random_kernel_is_tested():
    assert set(UNNORMALISED) == set(RANDOM_KERNELS)


@pytest.mark.parametrize("name", RANDOM_KERNELS)
def test_features_equal_the_formula_up_to_a_factor(name: str):
    kernel = draw(name, 13, "orthogonal", Generator().manual_seed(0))
    vectors = draw_vectors(7, seed=3)
    expected = UNNORMALISED[name](kernel, vectors)
    query_factor = kernel.query_features(vectors, scale=SCALE) / expected
    assert torch.allclose(query_factor, query_factor[..., :1].expand_as(query_factor), rtol=1e-10)
    key_factor = kernel.key_features(vectors, scale=SCALE) / expected
    assert torch.allclose(key_factor, key_factor[..., :1, :1].expand_as(key_factor), rtol=1e-10)


@pytest.mark.parametrize("projection", UNBIASED_PROJECTIONS)
@pytest.mark.parametrize("name", RANDOM_KERNELS)
def test_mean_over_draws_is_the_softmax_kernel(name: str, projection: str):
    products, reference = estimates(name, 8, projection, num_draws=1500)
    standard_error = products.std(dim=0) / math.sqrt(len(products))
    deviations = (products.mean(dim=0) - reference) / standard_error
    assert deviations.abs().max() < 5
    assert (products.mean(dim=0) / reference - 1).abs().mean() < 0.02


@pytest.mark.parametrize("projection", UNBIASED_PROJECTIONS)
@pytest.mark.parametrize("name", RANDOM_KERNELS)
def test_error_falls_with_the_root_of_num_features(name: str, projection: str):
    errors = []
    for num_features in (12, 192):
        products, reference = estimates(name, num_features, projection, num_draws=150)
        errors.append((products - reference).square().mean().sqrt())
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.25)


@pytest.mark.parametrize("name", RANDOM_KERNELS)
def test_orthogonal_draws_have_no_larger_variance(name: str):
    variances = [
        estimates(name, 8, projection, num_draws=1500)[0].var(dim=0).mean()
        for projection in UNBIASED_PROJECTIONS
    ]
    by_name = dict(zip(UNBIASED_PROJECTIONS, variances, strict=True))
    assert by_name["orthogonal"] <= by_name["independent"]
