import math
from typing import Literal

import pytest
import torch
from tests.contracts.cases import draw_inputs, draw_mask, relative_change
from tests.functional.kernel.fitted_kernels import attention_matrix, draw_vectors, fit, softmax_error
from torch import Generator, Tensor

from teka.functional import Optimal, Positive, draw_projection
from teka.functional.kernel.random import optimal_coefficient


def build(num_features: int = 7, dim: int = 5, projection: str = "orthogonal", seed: int = 0) -> Optimal:
    return Optimal(draw_projection(num_features, dim, generator=Generator().manual_seed(seed), projection=projection))


def fitted(kernel: Optimal, query: Tensor, key: Tensor, *, scale: float) -> Optimal:
    found = fit(kernel, query, key, scale=scale)
    assert isinstance(found, Optimal)
    return found


def estimate(kernel: Optimal, query: Tensor, key: Tensor, *, scale: float) -> Tensor:
    """φ(q)ᵀφ(k) with no factor left out."""
    coefficient = optimal_coefficient(kernel.mean_square, query.shape[-1], scale=scale)
    left = kernel.query_exponent(query, scale=scale).exp()
    right = kernel.key_exponent(key, scale=scale).exp()
    factor = (1 - 4 * coefficient) ** (query.shape[-1] / 2)
    return factor * (left @ right.transpose(-2, -1)) / left.shape[-1]


def second_moment(query: Tensor, key: Tensor, coefficient: float) -> float:
    """Mean over the pairs of log(E[κ̂²] / κ²) for one draw, as the docstring gives it."""
    dim = query.shape[-1]
    ratio = 1 / (1 - 8 * coefficient)
    square = (query[:, None] + key[None, :]).square().sum(dim=-1).mean()
    return dim * math.log((1 + ratio) / 2) - dim / 2 * math.log(ratio) + ratio * float(square)


def test_its_weights_are_the_formula_in_loops_up_to_one_factor_a_row():
    query, key, _ = draw_inputs(6)
    mask, kernel, scale = draw_mask(2, 6), build(), 0.4
    weights = kernel.weights(query, key, scale=scale, key_mask=mask)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    s = 2 * 5 * scale
    ratio = 10 / (math.sqrt((2 * s + 5) ** 2 + 40 * s) + 2 * s + 5)
    a = (1 - 1 / ratio) / 8
    for batch in range(2):
        for head in range(3):
            for i in range(6):
                row = []
                for j in range(6):
                    x, y = query[batch, head, i] * scale**0.5, key[batch, head, j] * scale**0.5
                    terms = [
                        math.exp(float(2 * a * w @ w + math.sqrt(1 - 4 * a) * w @ (x + y) - (x @ x + y @ y) / 2))
                        for w in kernel.projection
                    ]
                    row.append(sum(terms) if mask[batch, j] else 0.0)
                expected = torch.tensor(row, dtype=torch.float64) / sum(row)
                assert relative_change(weights[batch, head, i], expected) < 1e-12


@pytest.mark.parametrize("stage", ["unfitted", "fitted"])
@pytest.mark.parametrize("projection", ["orthogonal", "independent"])
def test_it_is_unbiased_and_its_error_falls_as_one_over_the_root_of_the_number_of_draws(
    projection: str, stage: Literal["unfitted", "fitted"]
):
    query, key = (draw_vectors(1, 1, 5, 6, seed=seed, deviation=0.35, mean=0.2) for seed in (1, 2))
    # A fitted kernel leaves out the factor exp(xᵀȳ) of the query.
    left_out = key.mean(dim=-2, keepdim=True) if stage == "fitted" else torch.zeros(1, 1, 1, 6, dtype=torch.float64)
    truth = torch.exp(0.6 * query @ (key - left_out).transpose(-2, -1))
    errors = []
    for num_features in (12, 192):
        found = []
        for seed in range(150):
            kernel = build(num_features, 6, projection, seed)
            if stage == "fitted":
                kernel = fitted(kernel, query, key, scale=0.6)
            found.append(estimate(kernel, query, key, scale=0.6))
        found = torch.stack(found)
        standard_error = found.std(dim=0) / math.sqrt(len(found))
        assert ((found.mean(dim=0) - truth) / standard_error).abs().max() < 5
        errors.append(float((found - truth).square().mean().sqrt()))
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.25)


def test_its_second_moment_is_the_stated_one():
    query, key = (draw_vectors(1, 1, 2, 3, seed=seed, deviation=0.5) for seed in (1, 2))
    kernel = build(200_000, 3, "independent")
    coefficient = optimal_coefficient(None, 3, scale=1.0)
    assert isinstance(coefficient, float)
    left, right = (kernel.query_exponent(vectors, scale=1.0).exp() for vectors in (query, key))
    products = (1 - 4 * coefficient) ** 1.5 * left[..., :, None, :] * right[..., None, :, :]
    found = (products.square().mean(dim=-1).log() - 2 * query @ key.transpose(-2, -1)).mean()
    assert float(found) == pytest.approx(second_moment(query[0, 0], key[0, 0], coefficient), abs=0.02)


@pytest.mark.parametrize(("deviation", "mean"), [(0.1, 0.0), (1.0, 0.0), (0.5, 0.7), (3.0, 1.0)])
def test_the_coefficient_minimises_the_second_moment_and_the_shift_lowers_it(deviation: float, mean: float):
    query, key = (draw_vectors(11, 7, seed=seed, deviation=deviation, mean=mean) for seed in (1, 2))
    square = (query[:, None] + key[None, :]).square().sum(dim=-1).mean()
    best = float(optimal_coefficient(square.reshape(1, 1, 1, 1), 7, scale=1.0))
    least = second_moment(query, key, best)
    assert best <= 0
    for other in (0.0, 0.9 * best, 1.1 * best, 2 * best):
        assert least <= second_moment(query, key, other) + 1e-12
    shift = query.mean(dim=0) + key.mean(dim=0)
    centred = fitted(build(7, 7), query[None, None], key[None, None], scale=1.0)
    assert centred.mean_square is not None
    expected = (query[:, None] + (key - shift)[None, :]).square().sum(dim=-1).mean()
    assert float(centred.mean_square) == pytest.approx(float(expected), rel=1e-12)
    after = float(optimal_coefficient(centred.mean_square, 7, scale=1.0))
    least_after = second_moment(query, key - shift, after)
    assert least_after <= least
    for factor in (0.9, 1.1):
        assert least_after <= second_moment(query, key - factor * shift, after)


def test_a_coefficient_of_zero_spread_is_zero():
    nothing = torch.zeros(1, 1, 1, 1, dtype=torch.float64)
    assert float(optimal_coefficient(nothing, 5, scale=1.0)) == 0


def test_adding_one_vector_to_all_keys_and_one_to_all_queries_changes_the_draw_as_it_changes_softmax():
    query, key, _ = draw_inputs(6)
    kernel = build()
    moved = attention_matrix(kernel, query, key + 3.0, scale=0.4)
    assert relative_change(moved, attention_matrix(kernel, query, key, scale=0.4)) < 1e-12


def test_statistics_are_those_of_the_kept_and_take_no_gradient():
    query, key, _ = (tensor.requires_grad_() for tensor in draw_inputs(6))
    mask, query_mask = draw_mask(2, 6), draw_mask(2, 6, seed=1)
    kernel = build().fitted(query, key, scale=0.4, query_mask=query_mask, key_mask=mask)
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


def test_the_gradient_is_unbiased_although_the_statistics_are_detached():
    query, key, _ = draw_inputs(3, batch=1, heads=1, scale=0.4)
    query.requires_grad_()
    gradients = []
    for seed in range(300):
        kernel = fitted(build(8, 5, seed=seed), query, key, scale=0.6)
        gradients.append(torch.autograd.grad(estimate(kernel, query, key, scale=0.6).sum(), query)[0])
    truth = torch.exp(0.6 * query @ (key - key.mean(dim=-2, keepdim=True)).transpose(-2, -1)).sum()
    expected = torch.autograd.grad(truth, query)[0]
    found = torch.stack(gradients)
    deviations = (found.mean(dim=0) - expected) / (found.std(dim=0) / math.sqrt(len(found)))
    assert deviations.abs().max() < 4.5


@pytest.mark.parametrize(("deviation", "mean"), [(0.7, 0.0), (1.0, 0.0), (0.7, 0.5)])
def test_its_error_to_softmax_is_no_larger_than_that_of_positive_features(deviation: float, mean: float):
    query, key = (draw_vectors(1, 2, 128, 16, seed=seed, deviation=deviation, mean=mean) for seed in (1, 2))
    errors = {Optimal: 0.0, Positive: 0.0}
    for seed in range(10):
        for kind in errors:
            kernel = kind(build(128, 16, seed=seed).projection)
            errors[kind] += softmax_error(kernel, query, key, scale=0.25)
    assert errors[Optimal] < errors[Positive]


def test_orthogonal_draws_have_no_larger_variance_than_independent_ones():
    query, key = (draw_vectors(1, 1, 5, 6, seed=seed, deviation=0.5) for seed in (1, 2))
    spread = {}
    for projection in ("orthogonal", "independent"):
        found = [estimate(build(6, 6, projection, seed), query, key, scale=0.6) for seed in range(400)]
        spread[projection] = float(torch.stack(found).var(dim=0).mean())
    assert spread["orthogonal"] <= spread["independent"]


@pytest.mark.parametrize(("num_features", "expected"), [(64, 0.74), (256, 0.515)])
def test_its_error_to_softmax_is_the_known_one(num_features: int, expected: float):
    query, key = (draw_vectors(1, 2, 256, 16, seed=seed) for seed in (1, 2))
    errors = [softmax_error(build(num_features, 16, seed=seed), query, key, scale=0.25) for seed in range(8)]
    assert sum(errors) / len(errors) == pytest.approx(expected, rel=0.12)


def test_means_far_from_zero_do_not_spoil_the_estimate():
    query, key = (draw_vectors(1, 2, 64, 16, seed=seed, mean=8.0, deviation=0.4) for seed in (1, 2))
    kernel = build(256, 16)
    assert softmax_error(kernel, query, key, scale=0.25) < 0.1
    assert softmax_error(Positive(kernel.projection), query, key, scale=0.25) > 1


@pytest.mark.parametrize("size", [(7, 4), (7,), (1, 7, 5)])
def test_a_projection_of_another_size_is_refused(size: tuple[int, ...], as_users_run_it: None):
    with pytest.raises(ValueError, match="projection has shape"):
        Optimal(torch.zeros(size)).num_features(5)
