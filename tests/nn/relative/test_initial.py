import torch
from torch.nn.functional import softplus

from teka.nn.relative.initial import inverse_softplus, random_directions


def test_softplus_undoes_its_inverse():
    values = torch.tensor([1e-6, 0.1, 1.0, 3.0, 50.0], dtype=torch.float64)
    assert torch.allclose(softplus(inverse_softplus(values)), values, rtol=1e-9)


def test_directions_have_length_1_and_no_side_that_they_prefer():
    torch.manual_seed(0)
    directions = random_directions(30, 50, 3)
    assert directions.shape == (30, 50, 3)
    assert torch.allclose(directions.norm(dim=-1), torch.ones(30, 50))
    assert float(directions.mean(dim=(0, 1)).abs().max()) < 0.05
