import math

import torch
from tests.contracts.cases import draw_inputs, draw_mask, relative_change

from teka.functional import Softmax


def test_its_weights_are_the_formula_in_loops():
    query, key, _ = draw_inputs(6)
    log_relative = torch.randn(2, 3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mask = draw_mask(2, 6)
    weights = Softmax().weights(query, key, scale=0.4, log_relative=log_relative, key_mask=mask)
    for batch in range(2):
        for head in range(3):
            for i in range(6):
                row = [
                    math.exp(
                        0.4 * float(query[batch, head, i] @ key[batch, head, j])
                        + float(log_relative[batch, head, i, j])
                    )
                    if mask[batch, j]
                    else 0.0
                    for j in range(6)
                ]
                expected = torch.tensor(row, dtype=torch.float64) / sum(row)
                assert relative_change(weights[batch, head, i], expected) < 1e-12


def test_it_has_no_overflow():
    query, key, _ = draw_inputs(6, scale=1e4)
    assert torch.isfinite(Softmax().weights(query, key, scale=1.0)).all()
