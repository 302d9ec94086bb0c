import math

import pytest
import torch
from tests.contracts.cases import draw_inputs, draw_mask, relative_change
from tests.functional.kernel.fitted_kernels import draw, draw_vectors, softmax_error
from torch import Generator

from teka.functional import Positive, draw_projection
from teka.functional.kernel.base import LOWEST_EXPONENT


def build(num_features: int = 7, dim: int = 5) -> Positive:
    return Positive(draw_projection(num_features, dim, generator=Generator().manual_seed(0)))


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
                    terms = [
                        math.exp(float(w @ x) - float(x @ x) / 2) * math.exp(float(w @ y) - float(y @ y) / 2) / 7
                        for w in kernel.projection
                    ]
                    row.append(sum(terms) if mask[batch, j] else 0.0)
                expected = torch.tensor(row, dtype=torch.float64) / sum(row)
                assert relative_change(weights[batch, head, i], expected) < 1e-12


def test_no_feature_is_above_one_or_zero_but_where_masked():
    query, key, _ = draw_inputs(6, scale=30.0)
    mask, kernel = draw_mask(2, 6), build()
    kept = kernel.key_features(key, scale=1.0, key_mask=mask).transpose(1, 2)[mask]
    for features in (kernel.query_features(query, scale=1.0), kept):
        assert features.min() >= math.exp(LOWEST_EXPONENT) * (1 - 1e-12)
        assert features.max() == 1
    dropped = kernel.key_features(key, scale=1.0, key_mask=mask).transpose(1, 2)[~mask]
    assert (dropped == 0).all()


def test_the_product_of_two_features_at_the_floor_is_a_normal_float32():
    assert math.exp(2 * LOWEST_EXPONENT) > torch.finfo(torch.float32).tiny


def test_causal_features_times_their_scale_are_the_features():
    _, key, _ = draw_inputs(6)
    kernel = build()
    features, log_scale = kernel.causal_key_features(key, scale=0.4)
    assert log_scale is not None
    assert relative_change(features * log_scale.exp()[..., None], kernel.key_exponent(key, scale=0.4).exp()) < 1e-12


@pytest.mark.parametrize(
    ("projection", "num_features", "expected"),
    [
        ("orthogonal", 64, 0.785),
        ("orthogonal", 256, 0.615),
        ("fixed_norm", 64, 0.59),
        ("fixed_norm", 256, 0.435),
    ],
)
def test_its_error_to_softmax_is_the_known_one(projection: str, num_features: int, expected: float):
    query, key = (draw_vectors(1, 2, 256, 16, seed=seed) for seed in (1, 2))
    generator = Generator().manual_seed(0)
    kernels = [draw("positive", num_features, 16, generator, projection) for _ in range(8)]
    errors = [softmax_error(kernel, query, key, scale=0.25) for kernel in kernels]
    assert sum(errors) / len(errors) == pytest.approx(expected, rel=0.12)


@pytest.mark.parametrize("size", [(7, 4), (7,), (1, 7, 5)])
def test_a_projection_of_another_size_is_refused(size: tuple[int, ...], as_users_run_it: None):
    with pytest.raises(ValueError, match="projection has shape"):
        Positive(torch.zeros(size)).num_features(5)
