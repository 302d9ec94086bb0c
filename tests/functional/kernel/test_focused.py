import math

import pytest
import torch
from tests.contracts.cases import draw_inputs, draw_mask, relative_change

from teka.functional import Focused


def features_in_loops(vector: torch.Tensor, epsilon: float) -> list[float]:
    """‖r‖ · r³/‖r³‖ with r = max(x, ε ‖x‖/√d)."""
    rectified = [max(x, epsilon * float(vector.norm()) / math.sqrt(len(vector))) for x in vector.tolist()]
    cubed = [r**3 for r in rectified]
    ratio = math.hypot(*rectified) / math.hypot(*cubed)
    return [ratio * c for c in cubed]


@pytest.mark.parametrize("epsilon", [1e-6, 0.5])
def test_its_weights_are_the_formula_in_loops(epsilon: float):
    query, key, _ = draw_inputs(6)
    mask = draw_mask(2, 6)
    weights = Focused(epsilon).weights(query, key, scale=0.4, key_mask=mask)
    for batch in range(2):
        for head in range(3):
            for i in range(6):
                for j in range(6):
                    x, y = query[batch, head, i], key[batch, head, j]
                    pairs = zip(features_in_loops(x, epsilon), features_in_loops(y, epsilon), strict=True)
                    expected = sum(a * b for a, b in pairs) if mask[batch, j] else 0.0
                    assert float(weights[batch, head, i, j]) == pytest.approx(expected, rel=1e-12, abs=1e-30)


def test_features_have_the_length_of_the_rectified_vector():
    query = draw_inputs(6)[0]
    features = Focused().query_features(query, scale=0.4)
    rectified = torch.relu(query)
    assert relative_change(features.norm(dim=-1), rectified.norm(dim=-1)) < 1e-5


def test_cubing_does_not_underflow():
    query = draw_inputs(6, scale=1e-7, dtype=torch.float32)[0]
    features = Focused().feature_map(query, scale=1.0)
    rescaled = Focused().feature_map(query * 2.0**23, scale=1.0)
    assert features.amax(dim=-1).min() > 0
    assert relative_change(features * 2.0**23, rescaled) < 1e-6


def test_its_gradient_is_that_of_the_formula_although_the_peak_is_detached():
    query = draw_inputs(3)[0].requires_grad_()
    assert torch.autograd.gradcheck(lambda query: Focused(0.1).query_features(query, scale=0.4), query)
