import pytest
import torch
from tests.contracts.cases import draw_inputs, draw_mask, relative_change

from teka.functional import SquaredRelu


@pytest.mark.parametrize("epsilon", [1e-6, 0.5])
def test_its_weights_are_the_formula_in_loops(epsilon: float):
    query, key, _ = draw_inputs(6)
    mask = draw_mask(2, 6)
    weights = SquaredRelu(epsilon).weights(query, key, scale=0.4, log_relative=None, key_mask=mask)
    for batch in range(2):
        for head in range(3):
            for i in range(6):
                for j in range(6):
                    expected = 0.0
                    x, y = query[batch, head, i], key[batch, head, j]
                    floors = [epsilon * float(vector.norm()) / 5**0.5 for vector in (x, y)]
                    pairs = zip(x.tolist(), y.tolist(), strict=True)
                    for q, k in pairs if mask[batch, j] else ():
                        expected += max(q, floors[0]) ** 2 * max(k, floors[1]) ** 2
                    assert float(weights[batch, head, i, j]) == pytest.approx(expected, rel=1e-12)


def test_a_query_without_a_positive_entry_attends_by_the_sums_of_the_keys_features():
    key = draw_inputs(6)[1]
    query = -torch.ones(2, 3, 1, 5, dtype=torch.float64)
    kernel = SquaredRelu()
    weights = kernel.weights(query, key, scale=1.0, log_relative=None, key_mask=None)
    sums = kernel.key_features(key, scale=1.0).sum(dim=-1)
    assert relative_change(weights[:, :, 0] / weights.sum(dim=-1), sums / sums.sum(dim=-1, keepdim=True)) < 1e-12


def test_it_has_as_many_features_as_the_vectors_have_numbers():
    assert SquaredRelu().num_features(7) == 7


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("nan")])
def test_an_epsilon_that_is_not_positive_is_refused(epsilon: float):
    with pytest.raises(ValueError, match="epsilon is"):
        SquaredRelu(epsilon)
