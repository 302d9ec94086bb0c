import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import teka
from teka import Grid
from teka.grid import active_grid_and_prefix
from teka.nn import Attention, AttentionHeads

SIZES = [(11,), (5, 7), (3, 5, 2), (2, 3, 1, 4)]
SPACING = (0.5, 2.0, 1.25, 3.0)


def noise(grid: Grid, channels: int = 3, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(batch, channels, *grid.shape, dtype=torch.float64, generator=generator)


Arguments = tuple[tuple[int, ...], tuple[float, ...], tuple[bool, ...]]


@st.composite
def grid_arguments(draw: st.DrawFn) -> Arguments:
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    spacing = tuple(draw(st.sampled_from([0.5, 1.0, 1.25, 0.1])) for _ in shape)
    return shape, spacing, tuple(draw(st.booleans()) for _ in shape)


@given(grid_arguments())
def test_every_cell_is_a_token_with_a_position(arguments: Arguments):
    grid = Grid(*arguments)
    assert grid.num_tokens == math.prod(grid.shape)
    assert grid.num_axes == len(grid.shape)
    assert grid.positions().shape == (grid.num_tokens, grid.num_axes)


def test_positions_are_in_row_major_order():
    for shape in SIZES:
        spacing = SPACING[: len(shape)]
        positions = Grid(shape, spacing).positions(dtype=torch.float64)
        for token in range(math.prod(shape)):
            rest, index = token, []
            for side in reversed(shape):
                rest, cell = divmod(rest, side)
                index.insert(0, cell)
            expected = [cell * step for cell, step in zip(index, spacing, strict=True)]
            assert positions[token].tolist() == expected


def test_one_number_applies_to_every_axis():
    size: Any = 5
    assert Grid(size) == Grid((5,))
    assert Grid((3, 5), 2.0, True) == Grid((3, 5), (2.0, 2.0), (True, True))
    assert hash(Grid((3, 5))) == hash(Grid((3, 5)))
    assert Grid((3, 5)) != Grid((5, 3))


@given(grid_arguments())
def test_unflatten_inverts_flatten(arguments: Arguments):
    grid = Grid(*arguments)
    images = noise(grid)
    tokens = grid.flatten(images)
    assert tokens.shape == (2, grid.num_tokens, 3)
    assert torch.equal(grid.unflatten(tokens), images)
    assert torch.equal(grid.flatten(grid.unflatten(tokens)), tokens)


def test_flatten_has_the_order_of_positions():
    for shape in SIZES:
        grid = Grid(shape, SPACING[: len(shape)])
        coordinates = grid.unflatten(grid.positions()[None])
        for axis, step in zip(range(len(shape)), SPACING, strict=False):
            for cell in range(shape[axis]):
                assert (coordinates[0, axis].select(axis, cell) == cell * step).all()


@given(grid_arguments())
def test_offsets_are_wrapped_differences_of_positions(arguments: Arguments):
    grid = Grid(*arguments)
    positions, offsets = grid.positions(dtype=torch.float64), grid.offsets(dtype=torch.float64)
    plain = positions[:, None] - positions[None, :]
    for axis in range(grid.num_axes):
        offset = offsets[..., axis]
        if not grid.periodic[axis]:
            assert torch.equal(offset, plain[..., axis])
            assert torch.equal(offset, -offset.T)
            continue
        side, step = grid.shape[axis], grid.spacing[axis]
        cells = offset / step
        assert (cells >= -side / 2 - 1e-9).all()
        assert (cells < side / 2 - 1e-9).all()
        turns = (offset - plain[..., axis]) / (side * step)
        assert torch.allclose(turns, turns.round(), atol=1e-9)


@given(grid_arguments(), st.data())
def test_rolls_compose(arguments: Arguments, data: st.DataObject):
    grid = Grid(*arguments)
    shifts = [tuple(data.draw(st.integers(-7, 7)) for _ in grid.shape) for _ in range(2)]
    images = noise(grid)
    both = tuple(sum(steps) for steps in zip(*shifts, strict=True))
    assert torch.equal(grid.roll(grid.roll(images, shifts[0]), shifts[1]), grid.roll(images, both))
    assert torch.equal(
        grid.roll(grid.roll(images, shifts[0]), [-step for step in shifts[0]]), images
    )
    assert torch.equal(grid.roll(images, grid.shape), images)


def test_roll_moves_down_and_to_the_right():
    images = torch.zeros(1, 1, 5, 7)
    images[0, 0, 1, 2] = 1
    assert Grid((5, 7)).roll(images, (3, 4))[0, 0, 4, 6] == 1
    assert Grid((5, 7)).roll(images, 4)[0, 0, 1, 6] == 1  # one number moves along the last axis


def test_dtypes_of_positions_and_offsets():
    grid = Grid((3, 5), 0.1, (True, False))
    for dtype in (torch.float32, torch.float64):
        assert grid.positions(dtype=dtype).dtype == dtype
        assert grid.offsets(dtype=dtype).dtype == dtype
    assert grid.positions().dtype == torch.get_default_dtype()


def test_wrong_shape_is_an_error(unchecked_annotations: None):
    for shape in [(), (0,), (3, -1), (2.5,), (True, 3), 0, 2.5, None]:
        with pytest.raises(ValueError, match="shape must be"):
            Grid(shape)


def test_wrong_spacing_is_an_error(unchecked_annotations: None):
    for spacing in [0.0, -1.0, math.inf, math.nan, (1.0,), (1.0, 2.0, 3.0), (1.0, 0.0)]:
        with pytest.raises(ValueError, match="spacing must be"):
            Grid((3, 5), spacing)


def test_wrong_periodic_is_an_error(unchecked_annotations: None):
    for periodic in [(True,), (True, False, True), 1, (True, 0)]:
        with pytest.raises(ValueError, match="periodic must be"):
            Grid((3, 5), 1.0, periodic)


@pytest.mark.parametrize("size", [(2, 3, 3, 5), (2, 3, 15), (2, 3, 5, 3), (3, 5)])
def test_tensor_of_another_grid_is_an_error(size: tuple[int, ...]):
    grid = Grid((3, 5))
    tensor = torch.zeros(size)
    if size == (2, 3, 3, 5):
        assert grid.flatten(tensor).shape == (2, 15, 3)
        return
    for function in (grid.flatten, lambda tensor: grid.roll(tensor, (1, 1))):
        with pytest.raises(ValueError, match=r"tensor must have shape \(batch, channels, 3, 5\)"):
            function(tensor)


def test_wrong_number_of_tokens_is_an_error():
    for size in [(2, 14, 3), (2, 15), (2, 3, 15, 1)]:
        with pytest.raises(ValueError, match=r"tokens must have shape \(batch, 15, channels\)"):
            Grid((3, 5)).unflatten(torch.zeros(size))


def test_wrong_shift_is_an_error(unchecked_annotations: None):
    for shift in [(1,), (1, 2, 3), (1.0, 2), 0.5, "ab", None]:
        with pytest.raises(ValueError, match="shift must be"):
            Grid((3, 5)).roll(torch.zeros(1, 1, 3, 5), shift)


def test_context_ends_after_an_error():
    assert active_grid_and_prefix() == (None, 0)
    with teka.on(Grid(3)):
        with pytest.raises(ValueError, match="shift"), teka.on(Grid((2, 2)), 1):
            Grid((2, 2)).check_shift((1, 2, 3))
        assert active_grid_and_prefix() == (Grid(3), 0)
    assert active_grid_and_prefix() == (None, 0)


def test_each_thread_has_its_own_context():
    with teka.on(Grid(3)), ThreadPoolExecutor(1) as other:
        assert other.submit(active_grid_and_prefix).result() == (None, 0)
        assert active_grid_and_prefix() == (Grid(3), 0)


def gradient_on(layer: Attention, tokens: Tensor, grid: Grid | None) -> Tensor:
    (gradient,) = torch.autograd.grad(layer(tokens, grid).pow(3).sum(), tokens)
    return gradient


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("backward_in", ["outside", "other context", "other thread"])
def test_recomputation_uses_the_grid_of_the_forward_pass(use_reentrant: bool, backward_in: str):
    torch.manual_seed(0)
    layer, tokens = Attention(8, 2).double(), noise(Grid(12), 8).mT
    wide, high = tokens.clone().requires_grad_(), tokens.clone().requires_grad_()
    with teka.on(Grid((3, 4))):
        output = checkpoint(layer, wide, use_reentrant=use_reentrant)
        with teka.on(Grid((4, 3))):
            output = (
                output.pow(3).sum()
                + checkpoint(layer, high, use_reentrant=use_reentrant).pow(3).sum()
            )
    if backward_in == "other thread":
        with ThreadPoolExecutor(1) as thread:
            thread.submit(output.backward).result()
    else:
        with teka.on(Grid((6, 2))) if backward_in == "other context" else nullcontext():
            output.backward()
    for inputs, grid in ((wide, Grid((3, 4))), (high, Grid((4, 3)))):
        torch.testing.assert_close(
            inputs.grad, gradient_on(layer, inputs, grid), rtol=1e-12, atol=1e-12
        )
    assert active_grid_and_prefix() == (None, 0)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_recomputation_ignores_the_context_of_the_backward_pass(use_reentrant: bool):
    torch.manual_seed(0)
    layer = AttentionHeads(8, 2, relative="decay").double()  # works without a grid
    inputs = torch.randn(1, 2, 12, 8, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(layer(inputs, inputs, inputs).pow(3).sum(), inputs)
    output = checkpoint(layer, inputs, inputs, inputs, use_reentrant=use_reentrant)
    with teka.on(Grid(12, periodic=True)):
        output.pow(3).sum().backward()
    torch.testing.assert_close(inputs.grad, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings(
    "ignore:None of the inputs have requires_grad"
)  # from the inner checkpoint
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_nested_checkpoints_and_contexts(use_reentrant: bool):
    torch.manual_seed(0)
    layer, tokens = Attention(8, 2).double(), noise(Grid(12), 8).mT.requires_grad_()

    def twice(tokens: Tensor) -> Tensor:
        with teka.on(Grid((4, 3))):
            tokens = checkpoint(layer, tokens, use_reentrant=use_reentrant)
        return checkpoint(layer, tokens, use_reentrant=use_reentrant)

    (expected,) = torch.autograd.grad(
        layer(layer(tokens, Grid((4, 3))), Grid((3, 4))).pow(3).sum(), tokens
    )
    with teka.on(Grid((3, 4))):
        output = checkpoint(twice, tokens, use_reentrant=use_reentrant)
    output.pow(3).sum().backward()
    torch.testing.assert_close(tokens.grad, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", [{"grid": (3, 0)}, {"grid": Grid(3), "num_prefix_tokens": -1}])
def test_wrong_arguments_of_on_are_errors(options: dict, unchecked_annotations: None):
    with pytest.raises(ValueError, match=f"{[*options][-1]} must be"), teka.on(**options):
        pass
