import torch
from tests.contracts.cases import draw_inputs, draw_mask, relative_change

from teka.functional import Constant, attention


def test_its_features_are_one_and_zero_where_masked():
    query, key, _ = draw_inputs(6)
    mask = draw_mask(2, 6)
    assert torch.equal(Constant().query_features(query, scale=0.4), torch.ones(2, 3, 6, 1, dtype=torch.float64))
    masked = Constant().key_features(key, scale=0.4, key_mask=mask)
    assert torch.equal(masked, mask[:, None, :, None].double().expand(2, 3, 6, 1))
    assert Constant().num_features(5) == 1


def test_alone_it_gives_the_mean_of_the_values():
    query, key, value = draw_inputs(6)
    output = attention(query, key, value, kernel="constant")
    assert relative_change(output, value.mean(dim=2, keepdim=True).expand_as(output)) < 1e-12
