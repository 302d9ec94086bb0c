import math

import pytest
import torch
from tests.contracts.cases import draw_inputs, relative_change
from torch import Generator

from teka import Grid
from teka.functional import Clipped, ClippedFeatures, attention, draw_projection

SCALE = 0.4


def build(num_features: int, seed: int = 0) -> ClippedFeatures:
    embedding = torch.randn(4, 5, dtype=torch.float64, generator=Generator().manual_seed(0))
    projection = draw_projection(num_features, 5, generator=Generator().manual_seed(seed))
    return ClippedFeatures(embedding, projection=projection)


@pytest.mark.parametrize("backend", ["dense", "rings"])
def test_attention_by_position_alone_is_the_formula_in_loops_over_pairs(backend: str):
    grid, relative = Grid((3, 5)), build(7)
    query, key, value = draw_inputs(15, batch=1, heads=2)
    output = attention(query, key, value, kernel="constant", relative=relative, grid=grid, backend=backend, scale=SCALE)
    assert relative.projection is not None
    cells = grid.positions().tolist()
    for head in range(2):
        for i, cell in enumerate(cells):
            x = query[0, head, i] * SCALE**0.5
            numerator, denominator = torch.zeros(4, dtype=torch.float64), 0.0
            for j, other in enumerate(cells):
                ring = min(int(abs(cell[0] - other[0]) + abs(cell[1] - other[1])), 3)
                y = relative.distance_embedding[ring] * SCALE**0.5
                weight = sum(
                    math.exp(float(w @ x - x @ x / 2)) * math.exp(float(w @ y - y @ y / 2)) / 7
                    for w in relative.projection
                )
                numerator += weight * value[0, head, j]
                denominator += weight
            assert relative_change(output[0, head, i], numerator / denominator) < 1e-12


def test_it_converges_to_the_clipped_kernel_as_features_grow():
    query = draw_inputs(6, scale=0.3)[0]
    exact = Clipped(build(1).distance_embedding * 0.3).log_rings(query, scale=SCALE).exp()
    errors = []
    for num_features in (16, 256, 4096):
        found = []
        for seed in range(8):
            relative = build(num_features, seed)
            quiet = ClippedFeatures(relative.distance_embedding * 0.3, projection=relative.projection)
            found.append((quiet.log_rings(query, scale=SCALE).exp() - exact).square().mean().sqrt())
        errors.append(float(torch.stack(found).mean()))
    assert errors[0] > 2 * errors[1] > 4 * errors[2]


def test_it_is_finite_for_long_queries_and_embeddings():
    relative = build(7)
    long = ClippedFeatures(30 * relative.distance_embedding.float(), projection=relative.projection)
    assert torch.isfinite(long.log_rings(draw_inputs(6, scale=30.0, dtype=torch.float32)[0], scale=SCALE)).all()


def test_without_a_projection_it_is_refused():
    with pytest.raises(ValueError, match="projection is None, expected a tensor"):
        ClippedFeatures(torch.zeros(4, 5))


def test_a_projection_of_another_size_is_refused(as_users_run_it: None):
    with pytest.raises(ValueError, match=r"projection has shape \(7, 4\), expected \(features, 5\)"):
        ClippedFeatures(torch.zeros(4, 5), projection=torch.zeros(7, 4))
