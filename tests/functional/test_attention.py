import dataclasses
import math

import pytest
import torch
from tests.contracts.cases import draw_inputs, draw_mask, relative_change
from torch import Generator

from teka import Grid
from teka.functional import Rotation, attention

TOLERANCE = 1e-12


def rotation(heads: int, num_axes: int) -> Rotation:
    """A rotation kernel with two scales."""
    cosine_weight, sine_weight = torch.randn(
        2, heads, num_axes, 2, dtype=torch.float64, generator=Generator().manual_seed(0)
    )
    return Rotation(torch.ones(2, dtype=torch.float64), cosine_weight, sine_weight)


def test_the_default_is_softmax_attention():
    query, key, value = draw_inputs(11)
    mask = draw_mask(2, 11)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None, :])
    assert relative_change(attention(query, key, value, key_mask=mask), expected) <= TOLERANCE


def test_it_is_the_one_equation_written_out_in_loops():
    query, key, value = draw_inputs(6, batch=1, heads=2, dim_value=3)
    grid = Grid((2, 3), (1.0, 0.5))
    relative = dataclasses.replace(rotation(2, 2), frequency=torch.tensor([1.0, 0.3]).double(), scale=0.7)
    output = attention(query, key, value, relative=relative, grid=grid, scale=0.4)
    positions = grid.positions(dtype=torch.float64).tolist()
    for head in range(2):
        for i in range(6):
            numerator, denominator = torch.zeros(3, dtype=torch.float64), 0.0
            for j in range(6):
                log_weight = 0.4 * float(query[0, head, i] @ key[0, head, j])
                for axis in range(2):
                    offset = positions[i][axis] - positions[j][axis]
                    for scale, frequency in enumerate((1.0, 0.3)):
                        alpha = float(relative.cosine_weight[head, axis, scale])
                        beta = float(relative.sine_weight[head, axis, scale])
                        # ω as it is in float32, from which the kernel's came.
                        phase = float(torch.tensor(frequency)) * offset
                        log_weight += 0.7 * (alpha * math.cos(phase) + beta * math.sin(phase))
                numerator += math.exp(log_weight) * value[0, head, j]
                denominator += math.exp(log_weight)
            assert relative_change(output[0, head, i], numerator / denominator) <= TOLERANCE


@pytest.mark.parametrize("kernel", ["softmax", "squared_relu", "constant", "positive"])
def test_queries_and_keys_may_differ_in_number_without_a_relative_kernel(kernel: str):
    query, key, value = draw_inputs(7)
    query = draw_inputs(4, seed=1)[0]
    assert attention(query, key, value, kernel=kernel).shape == (2, 3, 4, 4)


def test_a_grid_is_its_positions():
    inputs = draw_inputs(15)
    grid = Grid((3, 5), (0.5, 2.0))
    by_grid = attention(*inputs, relative="rotation", grid=grid)
    for positions in (grid.positions(), grid.positions().expand(2, -1, -1), grid.positions()[None]):
        by_positions = attention(*inputs, relative="rotation", positions=positions)
        assert relative_change(by_positions, by_grid) <= TOLERANCE


def test_positions_of_a_sample_are_its_own():
    inputs = draw_inputs(7)
    positions = torch.rand(2, 7, 3, dtype=torch.float64)
    together = attention(*inputs, relative="clipped", positions=4 * positions)
    for sample in range(2):
        part = slice(sample, sample + 1)
        alone = attention(*(tensor[part] for tensor in inputs), relative="clipped", positions=4 * positions[sample])
        assert relative_change(together[part], alone) <= TOLERANCE


def test_a_kernel_by_name_is_the_same_every_time_whatever_the_global_seed():
    inputs, outputs = draw_inputs(15), []
    for seed in (1, 2):
        torch.manual_seed(seed)
        outputs.append(attention(*inputs, kernel="positive", relative="rotation", grid=Grid((3, 5))))
    assert torch.equal(*outputs)


def test_a_row_whose_weights_underflow_gives_zero_and_not_nan():
    query, key, value = draw_inputs(5, dtype=torch.float32)
    huge = Rotation(torch.tensor([math.pi]), torch.full((3, 1, 1), 1e4), torch.full((3, 1, 1), 1e4))
    output = attention(query, key, value, kernel="squared_relu", relative=huge, grid=Grid((5,)))
    assert torch.isfinite(output).all()
