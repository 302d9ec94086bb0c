import torch
from tests.contracts.cases import build_relative, draw_inputs, draw_mask, relative_change

from teka import Grid
from teka.functional import SquaredRelu
from teka.functional.backend import dense
from teka.functional.placement import Placement


def test_it_is_the_normalised_product_of_content_and_relative_weights():
    grid, mask = Grid((3, 5)), draw_mask(2, 16)
    query, key, value = draw_inputs(16)
    relative = build_relative("rotation", heads=3, dim=5, num_axes=2)
    assert relative is not None
    output = dense(query, key, value, SquaredRelu(), relative, Placement(grid, None, 1), scale=0.4, key_mask=mask)
    content = SquaredRelu().query_features(query, scale=0.4) @ SquaredRelu().query_features(key, scale=0.4).mT
    factor = torch.ones(1, 3, 16, 16, dtype=torch.float64)
    factor[..., 1:, 1:] = relative.log_kernel(query[:, :, 1:], grid.offsets(dtype=torch.float64), scale=0.4).exp()
    weights = content * factor * mask[:, None, None, :]
    assert relative_change(output, weights @ value / weights.sum(dim=-1, keepdim=True)) < 1e-12
