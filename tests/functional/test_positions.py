import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from teka import Grid
from teka.functional import length_mask
from teka.functional.positions import Positions, phases
from teka.grid import WRAP_TOLERANCE, wrap_offset
from teka.precision import to_widest_dtype

LIKE = torch.zeros((), dtype=torch.float64)


def make_positions(
    grid: Grid | None = None, positions: torch.Tensor | None = None, num_prefix_tokens: int = 0
) -> Positions:
    return Positions(grid, positions, num_prefix_tokens=num_prefix_tokens)


def test_only_offsets_of_a_periodic_grid_wrap():
    grid = Grid((5,), periodic=True)
    assert make_positions(grid).pairwise_offsets(LIKE)[0, 4, 0] == 1
    assert make_positions(positions=grid.positions()).pairwise_offsets(LIKE)[0, 4, 0] == -4


def test_offsets_are_query_minus_key_positions():
    positions = torch.rand(2, 3, 4)
    offsets = make_positions(positions=positions).pairwise_offsets(LIKE)
    assert offsets.dtype == torch.float64
    assert torch.equal(offsets[1, 0, 2], (positions[1, 0].double() - positions[1, 2].double()))


def test_offsets_far_from_the_origin_are_exact():
    positions = 5e6 + torch.tensor([[0.0], [0.25], [0.5]], dtype=torch.float64)
    offsets = make_positions(positions=positions).pairwise_offsets(LIKE.float())
    assert offsets.dtype == torch.float32
    assert offsets[:, 0, 0].tolist() == [0.0, 0.25, 0.5]


def test_offsets_of_some_queries():
    placement = make_positions(Grid((3, 5), periodic=(True, False)))
    every = placement.pairwise_offsets(LIKE)
    assert torch.equal(placement.pairwise_offsets(LIKE, slice(4, 9)), every[4:9])


def test_queries_and_keys_can_have_different_positions():
    placement = Positions(Grid(2, spacing=2.0, origin=0.5), key=Positions(Grid(4)))
    assert placement.pairwise_offsets(LIKE)[..., 0].tolist() == [
        [0.5, -0.5, -1.5, -2.5],
        [2.5, 1.5, 0.5, -0.5],
    ]
    assert torch.equal(
        placement.pairwise_axis_offsets(0, LIKE), placement.pairwise_offsets(LIKE)[..., 0]
    )
    assert placement.shared_grid is None
    mixed = Positions(
        Grid(4, periodic=True), key=Positions(points=torch.tensor([[[3.5]], [[0.0]]]))
    )
    assert mixed.pairwise_offsets(LIKE)[..., 0, 0].tolist() == [
        [0.5, 1.5, -1.5, -0.5],
        [0.0, 1.0, -2.0, -1.0],
    ]


def test_num_axes():
    assert make_positions(Grid((3, 5, 2))).num_axes == 3
    assert make_positions(positions=torch.zeros(7, 4)).num_axes == 4
    assert make_positions().num_axes == 0


def test_torus_frequencies_are_rounded_without_a_gradient():
    placement = make_positions(Grid((4, 6), spacing=(1.0, 0.5), periodic=(True, False)))
    frequency = torch.tensor([[1.5, 1.5], [0.1, 0.1]], dtype=torch.float64, requires_grad=True)
    rounded = placement.round_frequency_to_periods(frequency)
    assert rounded.tolist() == [[math.pi / 2, 1.5], [0.0, 0.1]]
    (gradient,) = torch.autograd.grad(rounded.sum(), frequency)
    assert gradient.tolist() == [[0.0, 1.0], [0.0, 1.0]]


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        (make_positions(), r"grid or positions must be given.*got neither"),
        (make_positions(Grid(7), torch.zeros(7, 1)), r"grid or positions must be given.*got both"),
        (make_positions(Grid(6)), "must have 0 prefix \\+ 6 tokens of the grid"),
        (
            make_positions(positions=torch.zeros(6, 1)),
            r"positions must have shape \(7, axes\).*got \(6, 1\)",
        ),
        (make_positions(positions=torch.zeros(3, 7, 1)), r"positions must have .*got \(3, 7, 1\)"),
        (
            make_positions(positions=torch.full((7, 1), math.nan)),
            "positions must be finite, got NaN",
        ),
        (Positions(Grid(7), key=Positions(Grid(4))), "the key sequence must have .*got 5 tokens"),
        (Positions(Grid(7), key=Positions(Grid((5, 1)))), "of 1 axes, like the queries"),
        (Positions(Grid(7, periodic=True), key=Positions(Grid(5))), r"periods \(7.0,\)"),
        (
            Positions(Grid(6), key=Positions(Grid(4)), num_prefix_tokens=1),
            "num_prefix_tokens must be 0 if the keys have their own positions, got 1",
        ),
    ],
)
def test_wrong_positions_are_errors(placement: Positions, message: str):
    with pytest.raises(ValueError, match=message):
        placement.check_queries_and_keys(
            batch=2, num_queries=7, num_keys=7 if placement.key is None else 5
        )


def test_length_mask():
    assert length_mask(torch.tensor([1, 3]), 4).tolist() == [
        [True, False, False, False],
        [True, True, True, False],
    ]
    assert length_mask(torch.tensor([3, 100], dtype=torch.uint8), 300).sum(dim=1).tolist() == [
        3,
        100,
    ]


@pytest.mark.parametrize("lengths", [[-1, 3], [1, 5], [1.0, 2.0], [[1], [2]]])
def test_lengths_out_of_range_are_errors(lengths: list):
    with pytest.raises(ValueError, match=r"lengths must"):
        length_mask(torch.tensor(lengths), 4)


def frequencies(heads: int = 3, waves: int = 5, axes: int = 2) -> Tensor:
    return torch.randn(
        heads, waves, axes, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )


def test_phases_equal_inner_products_modulo_two_pi():
    frequency, positions = frequencies(), 20 * torch.randn(4, 7, 2, dtype=torch.float64)
    actual = phases(frequency, positions, positions.dtype)
    assert actual.shape == (4, 3, 7, 5)
    assert float(actual.abs().max()) < 2 * math.pi
    expected = sum(
        positions[:, None, :, None, axis] * frequency[None, :, None, :, axis] for axis in range(2)
    )
    assert torch.is_tensor(expected)
    turns = (expected - actual) / (2 * math.pi)
    assert float((turns - turns.round()).abs().max()) < 1e-12
    assert torch.allclose(phases(frequency, positions[1], torch.float64), actual[1], atol=1e-12)


@pytest.mark.parametrize("shift", [1e3, 2.0**20])
def test_float32_phases_are_precise_far_from_the_origin(shift: float):
    positions = torch.arange(7.0)[:, None] * torch.tensor([1.0, 0.5])
    here, there = (
        phases(frequencies().float(), places, places.dtype)
        for places in (positions, positions + shift)
    )
    assert here.dtype == torch.float32
    change = (there - there[:, :1]) - (here - here[:, :1])
    assert float(torch.sin(change / 2).abs().max()) < 1e-6


def test_gradient_of_phases_equals_that_of_the_inner_product():
    frequency, positions = (
        frequencies(1, 1, 2).requires_grad_(),
        torch.tensor([[30.0, -7.0]], dtype=torch.float64),
    )
    (gradient,) = torch.autograd.grad(
        phases(frequency, positions, positions.dtype).sum(), frequency
    )
    assert gradient.flatten().tolist() == pytest.approx([30.0, -7.0])


def test_widest_dtype_is_float64():
    assert to_widest_dtype(torch.ones(2)).dtype == torch.float64


@given(side=st.integers(1, 11), spacing=st.floats(0.1, 3))
def test_offsets_wrap_into_half_a_period(side: int, spacing: float):
    grid, offsets = (
        Grid(side, spacing, periodic=True),
        torch.linspace(-7, 7, 57, dtype=torch.float64),
    )
    wrapped, period = grid.wrap_axis(0, offsets), side * spacing
    turns = (offsets - wrapped) / period
    assert torch.allclose(turns, turns.round(), atol=1e-9)
    assert (wrapped.abs() <= (0.5 + 2 * WRAP_TOLERANCE) * period).all()
    assert (wrapped < 0.5 * period).all()


def test_offsets_without_a_period_do_not_change():
    offsets = torch.linspace(-7, 7, 57)
    assert wrap_offset(offsets, None) is offsets
