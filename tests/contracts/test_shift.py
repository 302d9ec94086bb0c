import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

from teka import Grid
from teka.functional import (
    RELATIVES,
    ClippedDistanceBias,
    ContentKernel,
    JointSinusoidalBias,
    RelativeKernel,
    WindowBias,
    attention,
    draw_projection,
)
from teka.functional.kernels import RANDOM_KERNELS
from teka.functional.relative.biases import DecayRelativeKernel
from teka.nn import Attention, SinusoidalPositionEmbedding
from tests.contracts.cases import (
    DEVICE,
    PAIRS,
    PAIRS_WITH_POSITIONS,
    SUPPORTED_CASES,
    Case,
    build_kernel,
    build_relative,
    draw_inputs,
    parametrize_by_kernel,
    relative_error,
    relatives_to_test,
    roll_tokens,
)

TOLERANCE = 1e-10
CLEARLY_BROKEN = 0.01
HEADS, DIM = 3, 5
# One side is short enough that rings wrap. There are at most 147 tokens.
SHAPES = st.lists(st.integers(1, 7), min_size=1, max_size=3).filter(
    lambda shape: max(shape) > 4 and math.prod(shape) < 150
)

EXACT_PAIRS = [pair for pair in PAIRS_WITH_POSITIONS if pair.is_exactly_equivariant]
IN_EXPECTATION_PAIRS = [pair for pair in PAIRS_WITH_POSITIONS if not pair.is_exactly_equivariant]


def redrawn(kernel: ContentKernel, num_features: int, seed: int) -> ContentKernel:
    """Return the kernel with another draw if it is random."""
    projection = getattr(kernel, "projection", None)
    if projection is None:
        return kernel
    drawn = draw_projection(
        num_features,
        projection.shape[-1],
        generator=Generator().manual_seed(seed),
        projection="independent",
    )
    assert dataclasses.is_dataclass(kernel)
    return dataclasses.replace(kernel, projection=drawn.to(DEVICE))


def change_under_a_shift_of_positions(
    kernel: ContentKernel,
    relative: RelativeKernel | None,
    num_axes: int,
    shift: Tensor,
    *,
    seed: int = 0,
    scale: float = 0.7,
) -> float:
    """Return the relative change of the output if all positions are shifted."""
    query, key, value = draw_inputs(11, heads=HEADS, dim=DIM, seed=seed, scale=scale)
    generator = Generator().manual_seed(seed)
    positions = 9 * torch.rand(2, 11, num_axes, dtype=torch.float64, generator=generator).to(DEVICE)
    here, there = (
        attention(query, key, value, kernel=kernel, relative=relative, positions=place)
        for place in (positions, positions + shift.to(DEVICE))
    )
    return relative_error(there, here)


def change_under_a_shift_on_a_canvas(
    attend: Callable[[Tensor, Grid, Tensor], Tensor], width: int
) -> float:
    """Return the relative change of the output if a patch moves on a masked canvas."""
    canvas, generator = (9, 10), Generator().manual_seed(3)
    patch = torch.randn(2, 12, width, dtype=torch.float64, generator=generator).to(DEVICE)
    outputs = []
    for top, left in ((0, 1), (5, 6)):
        cells = torch.zeros(canvas, dtype=torch.bool, device=DEVICE)
        cells[top : top + 3, left : left + 4] = True
        mask = cells.flatten().expand(2, -1)
        tokens = torch.zeros(2, 90, width, dtype=torch.float64, device=DEVICE)
        tokens[mask] = patch.flatten(0, 1)
        outputs.append(attend(tokens, Grid(canvas), mask)[:, cells.flatten()])
    return relative_error(outputs[1], outputs[0])


@parametrize_by_kernel(EXACT_PAIRS)
@settings(max_examples=4)
@given(
    shift=st.lists(st.floats(-50, 50), min_size=1, max_size=3),
    num_features=st.integers(8, 20),  # rotary rotates the eight features of the named kernel
    seed=st.integers(0, 2**16),
)
def test_shifting_positions_changes_nothing(
    pair: Case, shift: list[float], num_features: int, seed: int
):
    relative = build_relative(
        pair.relative, kernel=pair.kernel, heads=HEADS, dim=DIM, num_axes=len(shift)
    )
    kernel = redrawn(build_kernel(pair.kernel, relative, DIM), num_features, seed)
    change = change_under_a_shift_of_positions(
        kernel, relative, len(shift), torch.tensor(shift).double(), seed=seed
    )
    assert change <= TOLERANCE


@parametrize_by_kernel([pair for pair in PAIRS if pair.is_exactly_equivariant], origin=[5e5, 1e7])
def test_float32_is_precise_far_from_the_origin(pair: Case, origin: float):
    relative = build_relative(pair.relative, kernel=pair.kernel, heads=HEADS, dim=DIM, num_axes=2)
    inputs, kernel = (
        draw_inputs(40, heads=HEADS, dim=DIM, dtype=torch.float32),
        build_kernel(pair.kernel, relative, DIM),
    )
    options: dict[str, Any] = {"kernel": kernel, "relative": relative}
    here, there = Grid((5, 8), 0.1), Grid((5, 8), 0.1, origin=origin)
    expected = attention(*inputs, **options, grid=here)
    assert relative_error(attention(*inputs, **options, grid=there), expected) <= 1e-5
    if pair in PAIRS_WITH_POSITIONS:
        far_positions = there.positions(dtype=torch.float64, device=DEVICE)
        assert (
            relative_error(attention(*inputs, **options, positions=far_positions), expected) <= 1e-5
        )


@parametrize_by_kernel(IN_EXPECTATION_PAIRS)
def test_more_features_reduce_the_shift_error_of_the_joint_form(pair: Case):
    relative = build_relative(pair.relative, kernel=pair.kernel, heads=HEADS, dim=DIM, num_axes=2)
    assert isinstance(relative, JointSinusoidalBias)
    # Vectors are short, because long vectors need more features to show the rate.
    relative = dataclasses.replace(relative, scale=relative.scale / 8)
    kernel = build_kernel(pair.kernel, relative, DIM)
    shift = torch.tensor([4.0, 3.0], dtype=torch.float64)
    means = []
    for num_features in (32, 512, 8192):
        changes = [
            change_under_a_shift_of_positions(
                redrawn(kernel, num_features, seed), relative, 2, shift, scale=0.3
            )
            for seed in range(8)
        ]
        assert min(changes) > 1e-4  # far above the tolerance
        means.append(sum(changes) / len(changes))
    # The error falls as m^(−1/2), so that 16 times the features give a fourth of it.
    assert means[0] >= 2 * means[1] >= 4 * means[2]


@parametrize_by_kernel(SUPPORTED_CASES)
def test_moving_content_on_a_masked_canvas_moves_the_output(case: Case):
    relative = build_relative(
        case.relative, kernel=case.kernel, heads=HEADS, dim=DIM, num_axes=2, max_distance=3
    )
    kernel = build_kernel(case.kernel, relative, DIM)

    def attend(tokens: Tensor, grid: Grid, mask: Tensor) -> Tensor:
        query, key, value = tokens.unflatten(-1, (3, HEADS, DIM)).movedim(-3, 0).transpose(-2, -3)
        output = attention(
            query,
            key,
            value,
            kernel=kernel,
            relative=relative,
            grid=grid,
            key_mask=mask,
            backend=case.backend,
        )
        return output.transpose(1, 2).flatten(2)

    change = change_under_a_shift_on_a_canvas(attend, 3 * HEADS * DIM)
    assert change <= TOLERANCE if case.is_exactly_equivariant else change > CLEARLY_BROKEN


@parametrize_by_kernel(SUPPORTED_CASES)
@settings(max_examples=3)
@given(shape=SHAPES, data=st.data())
def test_rolling_a_periodic_grid_rolls_the_output(
    case: Case, shape: list[int], data: st.DataObject
):
    grid = Grid(tuple(shape), spacing=1.0, periodic=True)
    shift = tuple(data.draw(st.integers(-side, side)) for side in shape)
    relative = build_relative(
        case.relative, kernel=case.kernel, heads=HEADS, dim=DIM, num_axes=len(shape), max_distance=2
    )
    kernel = build_kernel(case.kernel, relative, DIM)
    inputs = draw_inputs(grid.num_tokens, heads=HEADS, dim=DIM)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attention(
            query, key, value, kernel=kernel, relative=relative, grid=grid, backend=case.backend
        )

    if isinstance(relative, JointSinusoidalBias):
        with pytest.raises(ValueError, match="no periodic axis"):
            attend(*inputs)
        return
    if (
        case.backend == "rings"
        and isinstance(relative, ClippedDistanceBias)
        and not relative.can_use_rings(grid)
    ):
        with pytest.raises(ValueError, match=r"backend must be .*got 'rings'"):
            attend(*inputs)
        return
    if (
        isinstance(relative, WindowBias)
        and case.backend == "windows"
        and min(grid.shape) <= 2 * relative.reach
    ):
        with pytest.raises(ValueError, match=r"backend must be .*got 'windows'"):
            attend(*inputs)
        return
    if case.backend == "linear" and isinstance(relative, DecayRelativeKernel):
        with pytest.raises(ValueError, match=r"backend must be .*got 'linear'"):
            attend(*inputs)
        return
    rolled = attend(*(roll_tokens(grid, tensor, shift) for tensor in inputs))
    assert relative_error(rolled, roll_tokens(grid, attend(*inputs), shift)) <= TOLERANCE


@pytest.mark.parametrize("relative", [None, *RELATIVES])
def test_absolute_positions_are_not_equivariant(relative: str | None):
    torch.manual_seed(0)
    layer = Attention(
        8,
        2,
        kernel="squared_relu" if relative != "rotation_joint" else "softmax",
        relative=relative,
    )
    layer, position = (
        layer.double().eval().to(DEVICE),
        SinusoidalPositionEmbedding(8).double().to(DEVICE),
    )
    assert change_under_a_shift_on_a_canvas(layer, 8) <= TOLERANCE
    on_grid = change_under_a_shift_on_a_canvas(
        lambda tokens, grid, mask: layer(position(tokens, grid), grid, mask), 8
    )
    assert on_grid > CLEARLY_BROKEN


def test_random_kernels_are_tested_with_the_joint_form():
    names = {
        name for name, relative in RELATIVES.items() if relative.equivariance == "in expectation"
    }
    crossed = {
        (kernel, relative)
        for kernel in RANDOM_KERNELS
        for relative in names & set(relatives_to_test(kernel))
    }
    assert {(pair.kernel, pair.relative) for pair in IN_EXPECTATION_PAIRS} == crossed
    assert len(crossed) >= 2
