from dataclasses import replace

import pytest
import torch
from tests.contracts.cases import build_relative, draw_inputs, relative_change

from teka import Grid
from teka.functional import Rotation
from teka.functional.positions import Positions


def rotation(num_axes: int) -> Rotation:
    relative = build_relative("rotation", heads=3, dim=5, num_axes=num_axes)
    assert isinstance(relative, Rotation)
    return relative


@pytest.mark.parametrize("shape", [(11,), (3, 5), (2, 3, 4)])
def test_inner_products_are_logits_with_the_relative_kernel(shape: tuple[int, ...]):
    sites = Positions(Grid(shape, spacing=0.7, origin=-3.0))
    num_tokens = sites.num_placed
    assert num_tokens is not None
    query, key, _ = draw_inputs(num_tokens + 2)
    placement = replace(sites, num_prefix_tokens=2)
    relative = rotation(len(shape))
    left, right = relative.concatenate(query, key, placement, scale=0.4)
    expected = 0.4 * query @ key.mT
    placed = query[:, :, 2:]
    expected[:, :, 2:, 2:] += relative.log_kernel(placed, placement.offsets_like(placed), scale=0.4)
    assert relative_change(left @ right.mT, expected) < 1e-13


def test_positions_of_their_own_for_every_sample_of_queries_and_keys():
    query, key, _ = draw_inputs(11)
    key = key[:, :, :7]
    at_query, at_key = (torch.randn(2, size, 3, dtype=torch.float64) for size in (11, 7))
    placement = Positions(points=at_query, key=Positions(points=at_key))
    relative = rotation(3)
    left, right = relative.concatenate(query, key, placement, scale=0.4)
    expected = 0.4 * query @ key.mT + relative.log_kernel(query, placement.offsets_like(query), scale=0.4)
    assert relative_change(left @ right.mT, expected) < 1e-13


def test_float32_places_far_away_are_no_less_exact():
    sites = Positions(Grid((5, 7), origin=1e6))
    query, key, _ = draw_inputs(35, dtype=torch.float32)
    placement, relative = sites, rotation(2)
    left, right = relative.concatenate(query, key, placement, scale=0.4)
    expected = 0.4 * query @ key.mT + relative.log_kernel(query, placement.offsets_like(query), scale=0.4)
    assert relative_change(left @ right.mT, expected) < 3e-6
