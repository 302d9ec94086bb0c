import math

import pytest
import torch
from tests.contracts.cases import draw_inputs, draw_mask, relative_change
from tests.functional.kernel.fitted_kernels import draw_vectors, softmax_error
from torch import Generator, Tensor

from teka.functional import Hyperbolic, Positive, draw_projection


def build(num_features: int = 7, dim: int = 5, projection: str = "orthogonal", seed: int = 0) -> Hyperbolic:
    generator = Generator().manual_seed(seed)
    return Hyperbolic(draw_projection(num_features, dim, generator=generator, projection=projection))


def estimate(kernel: Hyperbolic | Positive, query: Tensor, key: Tensor, *, scale: float) -> Tensor:
    """φ(q)ᵀφ(k) with no factor left out."""
    left, right = (kernel.query_exponent(vectors, scale=scale).exp() for vectors in (query, key))
    return left @ right.transpose(-2, -1) / left.shape[-1]


def test_its_weights_are_the_formula_in_loops_up_to_one_factor_a_row():
    query, key, _ = draw_inputs(6)
    mask, kernel, scale = draw_mask(2, 6), build(), 0.4
    weights = kernel.weights(query, key, scale=scale, key_mask=mask)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    for batch in range(2):
        for head in range(3):
            for i in range(6):
                row = []
                for j in range(6):
                    x, y = query[batch, head, i] * scale**0.5, key[batch, head, j] * scale**0.5
                    pairs = [math.exp(sign * float(w @ (x + y))) for w in kernel.projection for sign in (1, -1)]
                    row.append(math.exp(-float(x @ x + y @ y) / 2) * sum(pairs) / 14 if mask[batch, j] else 0.0)
                expected = torch.tensor(row, dtype=torch.float64) / sum(row)
                assert relative_change(weights[batch, head, i], expected) < 1e-12


def test_it_has_two_features_a_draw():
    assert build(7, 5).num_features(5) == 14


def test_the_same_draws_turned_round_give_the_same_kernel():
    query, key, _ = draw_inputs(6)
    kernel = build()
    turned = Hyperbolic(-kernel.projection)
    difference = kernel.weights(query, key, scale=0.4) - turned.weights(query, key, scale=0.4)
    assert difference.abs().max() < 1e-12


@pytest.mark.parametrize("projection", ["orthogonal", "independent"])
def test_it_is_unbiased_and_its_error_falls_as_one_over_the_root_of_the_number_of_draws(projection: str):
    query, key = (draw_vectors(1, 1, 5, 6, seed=seed, deviation=0.35) for seed in (1, 2))
    truth = torch.exp(0.6 * query @ key.transpose(-2, -1))
    errors = []
    for num_features in (12, 192):
        found = torch.stack(
            [estimate(build(num_features, 6, projection, seed), query, key, scale=0.6) for seed in range(150)]
        )
        standard_error = found.std(dim=0) / math.sqrt(len(found))
        assert ((found.mean(dim=0) - truth) / standard_error).abs().max() < 5
        errors.append(float((found - truth).square().mean().sqrt()))
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.25)


def test_its_variance_is_the_stated_fraction_of_the_positive_features():
    query, key = (draw_vectors(1, 1, 2, 3, seed=seed, deviation=0.4) for seed in (1, 2))
    variances = []
    for kind in (Hyperbolic, Positive):
        kernel = kind(draw_projection(200_000, 3, generator=Generator().manual_seed(0), projection="independent"))
        left, right = (kernel.query_exponent(vectors, scale=1.0).exp() for vectors in (query, key))
        products = left[..., :, None, :] * right[..., None, :, :]
        variances.append(products.unflatten(-1, (-1, 200_000)).mean(dim=-2).var(dim=-1))
    square = (query[..., :, None, :] + key[..., None, :, :]).square().sum(dim=-1)
    expected = (1 - torch.exp(-square)) / 2
    assert relative_change(variances[0] / variances[1] / expected, torch.ones_like(expected)) < 0.1


def test_orthogonal_draws_have_no_larger_variance_than_independent_ones():
    query, key = (draw_vectors(1, 1, 5, 6, seed=seed, deviation=0.5) for seed in (1, 2))
    spread = {}
    for projection in ("orthogonal", "independent"):
        found = [estimate(build(6, 6, projection, seed), query, key, scale=0.6) for seed in range(400)]
        spread[projection] = float(torch.stack(found).var(dim=0).mean())
    assert spread["orthogonal"] <= spread["independent"]


@pytest.mark.parametrize(("num_features", "expected"), [(64, 0.73), (256, 0.605)])
def test_its_error_to_softmax_is_the_known_one(num_features: int, expected: float):
    query, key = (draw_vectors(1, 2, 256, 16, seed=seed) for seed in (1, 2))
    errors = [softmax_error(build(num_features // 2, 16, seed=seed), query, key, scale=0.25) for seed in range(8)]
    assert sum(errors) / len(errors) == pytest.approx(expected, rel=0.12)


@pytest.mark.parametrize("size", [(7, 4), (7,), (1, 7, 5)])
def test_a_projection_of_another_size_is_refused(size: tuple[int, ...], as_users_run_it: None):
    with pytest.raises(ValueError, match="projection has shape"):
        Hyperbolic(torch.zeros(size)).num_features(5)
