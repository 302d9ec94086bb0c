import torch
from tests.contracts.cases import build_relative, draw_inputs, relative_change

from teka import Grid
from teka.functional import Rotation
from teka.functional.positions import Positions


def test_the_axes_matrices_multiply_to_the_whole_kernel():
    query = Grid((3, 4, 2), (1.0, 0.5, 2.0), (True, False, False))
    key = Grid((6, 2, 5), (0.5, 1.0, 0.5), (True, False, False), origin=(0.0, 0.25, 0.1))
    positions = Positions(query, key=Positions(key))
    relative = build_relative("rotation", heads=3, dim=5, num_axes=3)
    assert isinstance(relative, Rotation)
    log_matrices, log_peak = relative.axis_log_matrices(positions, torch.zeros((), dtype=torch.float64))
    product = torch.einsum("hab,hcd,hef->hacebdf", *map(torch.exp, log_matrices)).reshape(3, 24, 60)
    tokens = draw_inputs(24)[0]
    dense = relative.log_kernel(tokens, positions.offsets_like(tokens), scale=1.0)[0]
    assert relative_change(product * torch.exp(log_peak[0])[..., None], dense.exp()) < 1e-12
    assert all((matrix.amax(dim=-1) == 0).all() for matrix in log_matrices)
