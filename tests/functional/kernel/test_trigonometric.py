import math

import pytest
import torch
from tests.contracts.cases import draw_inputs, draw_mask, relative_change
from torch import Generator

from teka.functional import Trigonometric, draw_projection


def build(num_features: int = 7, dim: int = 5) -> Trigonometric:
    return Trigonometric(draw_projection(num_features, dim, generator=Generator().manual_seed(0)))


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
                    waves = [
                        math.sin(float(w @ x)) * math.sin(float(w @ y))
                        + math.cos(float(w @ x)) * math.cos(float(w @ y))
                        for w in kernel.projection
                    ]
                    factor = math.exp(float(x @ x) / 2 + float(y @ y) / 2) / 7
                    row.append(factor * sum(waves) if mask[batch, j] else 0.0)
                expected = torch.tensor(row, dtype=torch.float64) / sum(row)
                assert relative_change(weights[batch, head, i], expected) < 1e-10


def test_it_has_two_features_a_draw_and_both_signs():
    query, _, _ = draw_inputs(6)
    features = build().query_features(query, scale=1.0)
    assert features.shape[-1] == build().num_features(5) == 14
    assert features.min() < 0 < features.max()
    assert not Trigonometric.nonnegative


def test_causal_features_times_their_scale_are_the_features():
    _, key, _ = draw_inputs(6)
    mask, kernel = draw_mask(2, 6), build()
    features, log_scale = kernel.causal_key_features(key, scale=0.4, key_mask=mask)
    assert log_scale is not None
    assert log_scale.isfinite().all()
    scaled = math.sqrt(0.4) * key
    assert relative_change(log_scale, scaled.square().sum(dim=-1) / 2) < 1e-12
    peak = torch.where(mask[:, None], log_scale, -math.inf).amax(dim=-1, keepdim=True)
    found = features * (log_scale - peak).exp()[..., None]
    assert relative_change(found, kernel.key_features(key, scale=0.4, key_mask=mask)) < 1e-12


@pytest.mark.parametrize("size", [(7, 4), (7,), (1, 7, 5)])
def test_a_projection_of_another_size_is_refused(size: tuple[int, ...], as_users_run_it: None):
    with pytest.raises(ValueError, match="projection has shape"):
        Trigonometric(torch.zeros(size)).num_features(5)
