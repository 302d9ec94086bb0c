import torch
from tests.contracts.cases import relative_change

from teka.functional.backend.linear import linear


def test_it_is_the_sum_over_keys_of_the_features_products():
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.rand(2, 3, size, 7, dtype=torch.float64, generator=generator) for size in (4, 6))
    value = torch.randn(2, 3, 6, 5, dtype=torch.float64, generator=generator)
    sums = linear(query, key, value)
    numerator, denominator = torch.zeros(2, 3, 4, 5).double(), torch.zeros(2, 3, 4).double()
    for i in range(4):
        for j in range(6):
            weight = (query[:, :, i] * key[:, :, j]).sum(dim=-1)
            numerator[:, :, i] += weight[..., None] * value[:, :, j]
            denominator[:, :, i] += weight
    assert relative_change(sums.numerator, numerator) < 1e-12
    assert relative_change(sums.denominator, denominator) < 1e-12
