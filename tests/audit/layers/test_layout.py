from fractions import Fraction

import pytest
import torch

from teka.audit.layers.layout import Layout

GRID = (3, 5)
STRIDE = (Fraction(2), Fraction(2))
CELLS = torch.rand(2, 7, *GRID)
PREFIX = torch.full((2, 2, 7), torch.nan)
TOKENS = torch.cat([PREFIX, CELLS.flatten(2).transpose(1, 2)], dim=1)


@pytest.mark.parametrize(
    ("name", "output", "prefix"),
    [
        ("map", CELLS, 0),
        ("channels-last map", CELLS.permute(0, 2, 3, 1), 0),
        ("flat map", CELLS.flatten(2), 0),
        ("flattened", CELLS.flatten(1), 0),
        ("tokens", TOKENS, 2),
        ("tokens", TOKENS.unflatten(2, (7, 1)), 2),
        ("tokens of heads", TOKENS.unflatten(2, (7, 1)).transpose(1, 2), 2),
    ],
)
def test_every_layout_is_arranged_as_channels_over_cells_without_its_prefix(name, output, prefix):
    assert torch.equal(Layout(name, GRID, STRIDE, prefix).arrange(output), CELLS)


def test_a_vector_has_no_cells():
    assert Layout("vector", (), STRIDE).arrange(torch.rand(2, 7, 1, 1)).shape == (2, 7)


def test_tokens_count_the_grid_and_what_comes_before_it():
    assert Layout("tokens", GRID, STRIDE, 2).num_tokens == 17
