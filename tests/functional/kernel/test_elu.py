import math

import pytest
import torch
from tests.contracts.cases import draw_inputs, draw_mask, relative_change

from teka.functional import Elu
from teka.functional.kernel.base import LOWEST_EXPONENT


def test_its_weights_are_the_formula_in_loops():
    query, key, _ = draw_inputs(6)
    mask = draw_mask(2, 6)
    weights = Elu().weights(query, key, scale=0.4, key_mask=mask)
    for batch in range(2):
        for head in range(3):
            for i in range(6):
                for j in range(6):
                    expected = 0.0
                    pairs = zip(query[batch, head, i].tolist(), key[batch, head, j].tolist(), strict=True)
                    for pair in pairs if mask[batch, j] else ():
                        x, y = (math.sqrt(0.4) * entry for entry in pair)
                        expected += (1 + x if x > 0 else math.exp(x)) * (1 + y if y > 0 else math.exp(y))
                    assert float(weights[batch, head, i, j]) == pytest.approx(expected, rel=1e-12)


def test_it_is_elu_plus_one_and_so_is_its_gradient():
    one, other = (draw_inputs(6)[0].requires_grad_() for _ in range(2))
    features, expected = Elu().query_features(one, scale=1.0), torch.nn.functional.elu(other) + 1
    assert relative_change(features, expected) < 1e-12
    gradients = [torch.autograd.grad(of.square().sum(), by)[0] for of, by in ((features, one), (expected, other))]
    assert relative_change(*gradients) < 1e-12


def test_small_features_keep_their_digits_and_none_is_zero():
    query = torch.tensor([-20.0, -30.0, -1e4]).reshape(1, 1, 1, 3)
    features = Elu().query_features(query, scale=1.0)
    expected = torch.tensor([math.exp(-20), math.exp(-30), math.exp(LOWEST_EXPONENT)])
    assert (features[0, 0, 0] / expected - 1).abs().max() < 1e-5
