import math

import pytest
from tests.contracts.cases import draw_inputs, draw_mask

from teka.functional import Relu


@pytest.mark.parametrize("epsilon", [1e-6, 0.5])
def test_its_weights_are_the_formula_in_loops(epsilon: float):
    query, key, _ = draw_inputs(6)
    mask = draw_mask(2, 6)
    weights = Relu(epsilon).weights(query, key, scale=0.4, key_mask=mask)
    for batch in range(2):
        for head in range(3):
            for i in range(6):
                for j in range(6):
                    x, y = query[batch, head, i], key[batch, head, j]
                    floors = [epsilon * float(vector.norm()) / math.sqrt(5) for vector in (x, y)]
                    terms = [max(a, floors[0]) * max(b, floors[1]) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
                    expected = sum(terms) if mask[batch, j] else 0.0
                    assert float(weights[batch, head, i, j]) == pytest.approx(expected, rel=1e-12)
