import pytest
import torch

from teka.functional.backend.scans import BLOCK, scan


@pytest.mark.parametrize("side", [1, BLOCK, 2 * BLOCK + 1, 3 * BLOCK - 1, 2 * BLOCK * BLOCK + 7])
def test_a_scan_is_the_product_with_the_matrix_of_the_decay(side: int):
    generator = torch.Generator().manual_seed(0)
    cells = torch.randn(2, 3, side, 2, 4, dtype=torch.float64, generator=generator)
    rate = torch.tensor([0.0, 0.02, 4.0], dtype=torch.float64)
    steps = (torch.arange(side)[:, None] - torch.arange(side)).abs()
    truth = torch.einsum("hij,bhjcd->bhicd", torch.exp(-rate[:, None, None] * steps), cells)
    torch.testing.assert_close(scan(cells, rate), truth, rtol=1e-12, atol=1e-10)
