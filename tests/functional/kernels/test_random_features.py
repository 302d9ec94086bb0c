import itertools
import math
from typing import TypeVar

import pytest
import torch
from torch import Generator, Tensor

from teka.functional import (
    HyperbolicFeatures,
    OptimalPositiveFeatures,
    PositiveFeatures,
    TrigonometricFeatures,
    draw_projection,
)
from teka.functional.kernels.content_kernel import LOWEST_EXPONENT, masked_mean
from teka.functional.kernels.random_features import (
    ExponentialFeatureKernel,
    RandomFeatureKernel,
    least_variance_coefficient,
)
from tests.contracts.cases import draw_inputs, draw_mask, relative_error
from tests.functional.kernels.fitted_kernels import (
    attention_matrix,
    draw_vectors,
    fit,
    softmax_error,
)


def test_masked_mean_averages_kept_tokens():
    vectors, mask = draw_inputs(6)[0], draw_mask(2, 6)
    mean = masked_mean(vectors, mask)
    for batch in range(2):
        expected = vectors[batch][:, mask[batch]].mean(dim=1, keepdim=True)
        assert relative_error(mean[batch], expected) < 1e-12


def test_masked_mean_without_mask():
    vectors = draw_inputs(6)[0]
    assert (
        relative_error(
            masked_mean(vectors, None), masked_mean(vectors, torch.ones(2, 6, dtype=torch.bool))
        )
        < 1e-12
    )


def test_masked_mean_ignores_nan_and_is_zero_without_tokens():
    vectors, mask = draw_inputs(6)[0], draw_mask(2, 6)
    mask[1] = False
    dropped = torch.where(mask[:, None, :, None], vectors, torch.nan)
    assert torch.equal(masked_mean(dropped, mask), masked_mean(vectors, mask))
    assert (masked_mean(dropped, mask)[1] == 0).all()


Kind = TypeVar("Kind", bound=RandomFeatureKernel)


def build(
    kind: type[Kind],
    num_features: int = 7,
    dim: int = 5,
    projection: str = "orthogonal",
    seed: int = 0,
) -> Kind:
    return kind(
        draw_projection(
            num_features, dim, generator=Generator().manual_seed(seed), projection=projection
        )
    )


def positive(x: Tensor, y: Tensor, w: Tensor) -> float:
    return math.exp(float(w @ x) - float(x @ x) / 2) * math.exp(float(w @ y) - float(y @ y) / 2)


def hyperbolic(x: Tensor, y: Tensor, w: Tensor) -> float:
    return math.exp(-float(x @ x + y @ y) / 2) * 2 * math.cosh(float(w @ (x + y)))


def optimal(x: Tensor, y: Tensor, w: Tensor) -> float:
    s = 2 * 5 * SCALE
    ratio = 10 / (math.sqrt((2 * s + 5) ** 2 + 40 * s) + 2 * s + 5)
    a = (1 - 1 / ratio) / 8
    return math.exp(float(2 * a * w @ w + math.sqrt(1 - 4 * a) * w @ (x + y) - (x @ x + y @ y) / 2))


def trigonometric(x: Tensor, y: Tensor, w: Tensor) -> float:
    waves = math.sin(float(w @ x)) * math.sin(float(w @ y)) + math.cos(float(w @ x)) * math.cos(
        float(w @ y)
    )
    return math.exp(float(x @ x) / 2 + float(y @ y) / 2) * waves


SCALE = 0.4
FORMULAS = {
    PositiveFeatures: (positive, 1e-12),
    HyperbolicFeatures: (hyperbolic, 1e-12),
    OptimalPositiveFeatures: (optimal, 1e-12),
    TrigonometricFeatures: (trigonometric, 1e-10),
}


@pytest.mark.parametrize("kind", FORMULAS)
def test_random_weights_equal_formula_up_to_row_factor(kind: type[RandomFeatureKernel]):
    query, key, _ = draw_inputs(6)
    mask, kernel, (term, tolerance) = draw_mask(2, 6), build(kind), FORMULAS[kind]
    weights = kernel.weights(query, key, scale=SCALE, key_mask=mask)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    for batch, head, i in itertools.product(range(2), range(3), range(6)):
        x = query[batch, head, i] * SCALE**0.5
        vectors = [key[batch, head, j] * SCALE**0.5 for j in range(6)]
        row = [sum(term(x, y, w) for w in kernel.projection) for y in vectors]
        expected = torch.tensor(row, dtype=torch.float64) * mask[batch]
        assert relative_error(weights[batch, head, i], expected / expected.sum()) < tolerance


@pytest.mark.parametrize("kind", FORMULAS)
def test_projection_of_another_size_raises(
    kind: type[RandomFeatureKernel], unchecked_annotations: None
):
    for size in ((7, 4), (7,), (1, 7, 5)):
        with pytest.raises(ValueError, match="projection must have"):
            kind(torch.zeros(size)).num_features(5)


@pytest.mark.parametrize(
    ("kind", "projection", "num_features", "expected"),
    [
        (PositiveFeatures, "orthogonal", 64, 0.785),
        (PositiveFeatures, "orthogonal", 256, 0.615),
        (PositiveFeatures, "fixed_norm", 64, 0.59),
        (PositiveFeatures, "fixed_norm", 256, 0.435),
        (HyperbolicFeatures, "orthogonal", 64, 0.73),
        (HyperbolicFeatures, "orthogonal", 256, 0.605),
        (OptimalPositiveFeatures, "orthogonal", 64, 0.74),
        (OptimalPositiveFeatures, "orthogonal", 256, 0.515),
    ],
)
def test_error_to_softmax(
    kind: type[RandomFeatureKernel], projection: str, num_features: int, expected: float
):
    query, key = (draw_vectors(1, 2, 256, 16, seed=seed) for seed in (1, 2))
    num_draws = num_features // kind.features_per_draw
    kernels = [build(kind, num_draws, 16, projection, seed) for seed in range(8)]
    errors = [softmax_error(kernel, query, key, scale=0.25) for kernel in kernels]
    assert sum(errors) / len(errors) == pytest.approx(expected, rel=0.12)


def estimate(
    kernel: ExponentialFeatureKernel, query: Tensor, key: Tensor, *, scale: float
) -> Tensor:
    """φ(q)ᵀφ(k) with no factor left out but that of the query once it is fitted."""
    left, right = (
        kernel.query_exponent(query, scale=scale).exp(),
        kernel.key_exponent(key, scale=scale).exp(),
    )
    factor = 1.0
    if isinstance(kernel, OptimalPositiveFeatures):
        coefficient = least_variance_coefficient(kernel.mean_square, query.shape[-1], scale=scale)
        factor = (1 - 4 * coefficient) ** (query.shape[-1] / 2)
    return factor * (left @ right.transpose(-2, -1)) / left.shape[-1]


@pytest.mark.parametrize("projection", ["orthogonal", "independent"])
@pytest.mark.parametrize("kind", ["hyperbolic", "optimal", "fitted"])
def test_estimate_is_unbiased_and_converges(kind: str, projection: str):
    mean = 0.0 if kind == "hyperbolic" else 0.2
    query, key = (draw_vectors(1, 1, 5, 6, seed=seed, deviation=0.35, mean=mean) for seed in (1, 2))
    # A fitted kernel leaves out the factor exp(xᵀȳ) of the query.
    left_out = (
        key.mean(dim=-2, keepdim=True)
        if kind == "fitted"
        else torch.zeros(1, 1, 1, 6, dtype=torch.float64)
    )
    reference = torch.exp(0.6 * query @ (key - left_out).transpose(-2, -1))
    errors = []
    for num_draws in (12, 192):
        actual = []
        for seed in range(150):
            kernel = build(
                HyperbolicFeatures if kind == "hyperbolic" else OptimalPositiveFeatures,
                num_draws,
                6,
                projection,
                seed,
            )
            kernel = (
                fitted(kernel, query, key, scale=0.6)
                if isinstance(kernel, OptimalPositiveFeatures) and kind == "fitted"
                else kernel
            )
            actual.append(estimate(kernel, query, key, scale=0.6))
        actual = torch.stack(actual)
        standard_error = actual.std(dim=0) / math.sqrt(len(actual))
        assert ((actual.mean(dim=0) - reference) / standard_error).abs().max() < 5
        errors.append(float((actual - reference).square().mean().sqrt()))
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.25)


@pytest.mark.parametrize("kind", [HyperbolicFeatures, OptimalPositiveFeatures])
def test_orthogonal_draws_do_not_increase_variance(kind: type[ExponentialFeatureKernel]):
    query, key = (draw_vectors(1, 1, 5, 6, seed=seed, deviation=0.5) for seed in (1, 2))
    spread = {}
    for projection in ("orthogonal", "independent"):
        kernels = [build(kind, 6, 6, projection, seed) for seed in range(400)]
        actual = [estimate(kernel, query, key, scale=0.6) for kernel in kernels]
        spread[projection] = float(torch.stack(actual).var(dim=0).mean())
    assert spread["orthogonal"] <= spread["independent"]


def test_features_are_in_range():
    query, key, _ = draw_inputs(6, scale=30.0)
    mask, kernel = draw_mask(2, 6), build(PositiveFeatures)
    kept = kernel.key_features(key, scale=1.0, key_mask=mask).transpose(1, 2)[mask]
    for features in (kernel.query_features(query, scale=1.0), kept):
        assert features.min() >= math.exp(LOWEST_EXPONENT) * (1 - 1e-12)
        assert features.max() == 1
    dropped = kernel.key_features(key, scale=1.0, key_mask=mask).transpose(1, 2)[~mask]
    assert (dropped == 0).all()


def test_product_of_floored_features_is_normal():
    assert math.exp(2 * LOWEST_EXPONENT) > torch.finfo(torch.float32).tiny


def test_exponential_causal_features_times_scale():
    _, key, _ = draw_inputs(6)
    kernel = build(PositiveFeatures)
    features, log_scale = kernel.causal_key_features(key, scale=0.4)
    assert log_scale is not None
    assert (
        relative_error(
            features * log_scale.exp()[..., None], kernel.key_exponent(key, scale=0.4).exp()
        )
        < 1e-12
    )


def test_hyperbolic_num_features():
    assert build(HyperbolicFeatures, 7, 5).num_features(5) == 14


def test_hyperbolic_is_symmetric_in_draws():
    query, key, _ = draw_inputs(6)
    kernel = build(HyperbolicFeatures)
    rotated = HyperbolicFeatures(-kernel.projection)
    difference = kernel.weights(query, key, scale=0.4) - rotated.weights(query, key, scale=0.4)
    assert difference.abs().max() < 1e-12


def test_hyperbolic_variance_ratio():
    query, key = (draw_vectors(1, 1, 2, 3, seed=seed, deviation=0.4) for seed in (1, 2))
    variances = []
    for kind in (HyperbolicFeatures, PositiveFeatures):
        kernel = kind(
            draw_projection(
                200_000, 3, generator=Generator().manual_seed(0), projection="independent"
            )
        )
        left, right = (kernel.query_exponent(vectors, scale=1.0).exp() for vectors in (query, key))
        products = left[..., :, None, :] * right[..., None, :, :]
        variances.append(products.unflatten(-1, (-1, 200_000)).mean(dim=-2).var(dim=-1))
    square = (query[..., :, None, :] + key[..., None, :, :]).square().sum(dim=-1)
    expected = (1 - torch.exp(-square)) / 2
    assert relative_error(variances[0] / variances[1] / expected, torch.ones_like(expected)) < 0.1


def fitted(
    kernel: OptimalPositiveFeatures, query: Tensor, key: Tensor, *, scale: float
) -> OptimalPositiveFeatures:
    actual = fit(kernel, query, key, scale=scale)
    assert isinstance(actual, OptimalPositiveFeatures)
    return actual


def second_moment(query: Tensor, key: Tensor, coefficient: float) -> float:
    """Mean over the pairs of log(E[κ̂²] / κ²) for one draw, as the docstring gives it."""
    dim = query.shape[-1]
    ratio = 1 / (1 - 8 * coefficient)
    square = (query[:, None] + key[None, :]).square().sum(dim=-1).mean()
    return dim * math.log((1 + ratio) / 2) - dim / 2 * math.log(ratio) + ratio * float(square)


def test_optimal_second_moment():
    query, key = (draw_vectors(1, 1, 2, 3, seed=seed, deviation=0.5) for seed in (1, 2))
    kernel = build(OptimalPositiveFeatures, 200_000, 3, "independent")
    coefficient = least_variance_coefficient(None, 3, scale=1.0)
    assert isinstance(coefficient, float)
    left, right = (kernel.query_exponent(vectors, scale=1.0).exp() for vectors in (query, key))
    products = (1 - 4 * coefficient) ** 1.5 * left[..., :, None, :] * right[..., None, :, :]
    actual = (products.square().mean(dim=-1).log() - 2 * query @ key.transpose(-2, -1)).mean()
    assert float(actual) == pytest.approx(
        second_moment(query[0, 0], key[0, 0], coefficient), abs=0.02
    )


@pytest.mark.parametrize(("deviation", "mean"), [(0.1, 0.0), (1.0, 0.0), (0.5, 0.7), (3.0, 1.0)])
def test_optimal_coefficient_minimizes_second_moment(deviation: float, mean: float):
    query, key = (draw_vectors(11, 7, seed=seed, deviation=deviation, mean=mean) for seed in (1, 2))
    square = (query[:, None] + key[None, :]).square().sum(dim=-1).mean()
    best = float(least_variance_coefficient(square.reshape(1, 1, 1, 1), 7, scale=1.0))
    least = second_moment(query, key, best)
    assert best <= 0
    for other in (0.0, 0.9 * best, 1.1 * best, 2 * best):
        assert least <= second_moment(query, key, other) + 1e-12
    shift = query.mean(dim=0) + key.mean(dim=0)
    centred = fitted(
        build(OptimalPositiveFeatures, 7, 7), query[None, None], key[None, None], scale=1.0
    )
    assert centred.mean_square is not None
    expected = (query[:, None] + (key - shift)[None, :]).square().sum(dim=-1).mean()
    assert float(centred.mean_square) == pytest.approx(float(expected), rel=1e-12)
    after = float(least_variance_coefficient(centred.mean_square, 7, scale=1.0))
    least_after = second_moment(query, key - shift, after)
    assert least_after <= least
    for factor in (0.9, 1.1):
        assert least_after <= second_moment(query, key - factor * shift, after)


def test_optimal_coefficient_without_spread_is_zero():
    nothing = torch.zeros(1, 1, 1, 1, dtype=torch.float64)
    assert float(least_variance_coefficient(nothing, 5, scale=1.0)) == 0


def test_optimal_ignores_common_offsets_as_softmax():
    query, key, _ = draw_inputs(6)
    kernel = build(OptimalPositiveFeatures)
    moved = attention_matrix(kernel, query, key + 3.0, scale=0.4)
    assert relative_error(moved, attention_matrix(kernel, query, key, scale=0.4)) < 1e-12


def test_optimal_statistics_use_kept_tokens_without_gradient():
    query, key, _ = (tensor.requires_grad_() for tensor in draw_inputs(6))
    mask, query_mask = draw_mask(2, 6), draw_mask(2, 6, seed=1)
    kernel = build(OptimalPositiveFeatures).with_statistics(
        query, key, scale=0.4, query_mask=query_mask, key_mask=mask
    )
    for statistic in (kernel.mean_square, kernel.query_mean, kernel.key_mean):
        assert statistic is not None
        assert not statistic.requires_grad
    assert kernel.mean_square is not None
    for batch in range(2):
        for head in range(3):
            x = query[batch, head, query_mask[batch]].detach() * math.sqrt(0.4)
            y = key[batch, head, mask[batch]].detach() * math.sqrt(0.4)
            spread = sum(float((z - z.mean(dim=0)).square().sum(dim=-1).mean()) for z in (x, y))
            assert float(kernel.mean_square[batch, head]) == pytest.approx(spread, rel=1e-12)


def test_optimal_gradient_is_unbiased():
    query, key, _ = draw_inputs(3, batch=1, heads=1, scale=0.4)
    query.requires_grad_()
    gradients = []
    for seed in range(300):
        kernel = fitted(build(OptimalPositiveFeatures, 8, 5, seed=seed), query, key, scale=0.6)
        gradients.append(
            torch.autograd.grad(estimate(kernel, query, key, scale=0.6).sum(), query)[0]
        )
    reference = torch.exp(
        0.6 * query @ (key - key.mean(dim=-2, keepdim=True)).transpose(-2, -1)
    ).sum()
    expected = torch.autograd.grad(reference, query)[0]
    actual = torch.stack(gradients)
    deviations = (actual.mean(dim=0) - expected) / (actual.std(dim=0) / math.sqrt(len(actual)))
    assert deviations.abs().max() < 4.5


@pytest.mark.parametrize(("deviation", "mean"), [(0.7, 0.0), (1.0, 0.0), (0.7, 0.5)])
def test_optimal_error_is_at_most_positive_error(deviation: float, mean: float):
    query, key = (
        draw_vectors(1, 2, 128, 16, seed=seed, deviation=deviation, mean=mean) for seed in (1, 2)
    )
    errors = {OptimalPositiveFeatures: 0.0, PositiveFeatures: 0.0}
    for seed in range(10):
        for kind in errors:
            kernel = kind(build(OptimalPositiveFeatures, 128, 16, seed=seed).projection)
            errors[kind] += softmax_error(kernel, query, key, scale=0.25)
    assert errors[OptimalPositiveFeatures] < errors[PositiveFeatures]


def test_optimal_with_large_means():
    query, key = (draw_vectors(1, 2, 64, 16, seed=seed, mean=8.0, deviation=0.4) for seed in (1, 2))
    kernel = build(OptimalPositiveFeatures, 256, 16)
    assert softmax_error(kernel, query, key, scale=0.25) < 0.1
    assert softmax_error(PositiveFeatures(kernel.projection), query, key, scale=0.25) > 1


def test_trigonometric_num_features_and_signs():
    query, _, _ = draw_inputs(6)
    features = build(TrigonometricFeatures).query_features(query, scale=1.0)
    assert features.shape[-1] == build(TrigonometricFeatures).num_features(5) == 14
    assert features.min() < 0 < features.max()
    assert not TrigonometricFeatures.nonnegative


def test_trigonometric_causal_features_times_scale():
    _, key, _ = draw_inputs(6)
    mask, kernel = draw_mask(2, 6), build(TrigonometricFeatures)
    features, log_scale = kernel.causal_key_features(key, scale=0.4, key_mask=mask)
    assert log_scale is not None
    assert log_scale.isfinite().all()
    scaled = math.sqrt(0.4) * key
    assert relative_error(log_scale, scaled.square().sum(dim=-1) / 2) < 1e-12
    peak = torch.where(mask[:, None], log_scale, -math.inf).amax(dim=-1, keepdim=True)
    actual = features * (log_scale - peak).exp()[..., None]
    assert relative_error(actual, kernel.key_features(key, scale=0.4, key_mask=mask)) < 1e-12
