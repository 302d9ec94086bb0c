import math

import pytest
import torch
from tests.contracts.cases import draw_inputs, draw_mask, relative_change
from torch import Generator

from teka.functional import Positive, draw_projection
from teka.functional.kernel.positive import LOWEST_EXPONENT


def build(num_features: int = 7, dim: int = 5) -> Positive:
    return Positive(draw_projection(num_features, dim, generator=Generator().manual_seed(0)))


def test_its_weights_are_the_formula_in_loops_up_to_one_factor_a_row():
    query, key, _ = draw_inputs(6)
    mask, kernel, scale = draw_mask(2, 6), build(), 0.4
    weights = kernel.weights(query, key, scale=scale, log_relative=None, key_mask=mask)
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


@pytest.mark.parametrize("size", [(7, 4), (7,), (1, 7, 5)])
def test_a_projection_of_another_size_is_refused(size: tuple[int, ...], as_users_run_it: None):
    with pytest.raises(ValueError, match="projection has shape"):
        Positive(torch.zeros(size)).num_features(5)
