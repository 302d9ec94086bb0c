import math

import torch
from torch import Tensor

from teka import Grid
from teka.functional import FeatureKernel, RelativeKernel, attention
from teka.functional.relative.relative_kernel import PositiveRelativeKernel
from tests.contracts.cases import (
    DEVICE,
    PAIRS_WITH_POSITIONS,
    SUPPORTED_CASES,
    Case,
    build_kernel,
    build_relative,
    draw_inputs,
    is_weighted_mean,
    parametrize_by_kernel,
    relative_error,
)

TOLERANCE = 1e-10
GRID = Grid((3, 5))
SCALE = 0.4
EXACT = [
    case for case in SUPPORTED_CASES if case.relative is not None and case.is_exactly_equivariant
]


def attend(
    case: Case,
    inputs: list[Tensor],
    num_prefix_tokens: int,
    relative: RelativeKernel | None,
    grid: Grid | None,
):
    query, key, value = inputs
    kernel = build_kernel(case.kernel, relative, query.shape[-1])
    return attention(
        query,
        key,
        value,
        kernel=kernel,
        relative=relative,
        grid=grid,
        scale=SCALE,
        backend=case.backend if relative is not None else "auto",
        num_prefix_tokens=num_prefix_tokens,
    )


@parametrize_by_kernel(EXACT, num_prefix_tokens=[1, 2])
def test_prefix_query_has_no_relative_weights(case: Case, num_prefix_tokens: int):
    inputs = draw_inputs(num_prefix_tokens + GRID.num_tokens)
    relative = build_relative(case.relative, kernel=case.kernel, heads=3, dim=5, num_axes=2)
    on_grid = attend(case, inputs, num_prefix_tokens, relative, GRID)
    unplaced = attend(case, inputs, 0, None, None)
    first = slice(0, num_prefix_tokens)
    assert relative_error(on_grid[:, :, first], unplaced[:, :, first]) <= TOLERANCE
    assert (
        relative_error(on_grid[:, :, num_prefix_tokens:], unplaced[:, :, num_prefix_tokens:]) > 1e-3
    )


@parametrize_by_kernel(
    [case for case in EXACT if case.relative != "rotary" and is_weighted_mean(case.kernel)]
)
def test_prefix_key_has_a_relative_weight_of_one(case: Case):
    """out = (S + κ_0 v_0) / (s + κ_0), with the sums S and s over the keys on the grid."""
    prefix_value = 3.0
    query, key, _ = draw_inputs(1 + GRID.num_tokens)
    value = torch.zeros(2, 3, 1 + GRID.num_tokens, 1, dtype=torch.float64, device=DEVICE)
    value[:, :, 0] = prefix_value
    relative = build_relative(case.relative, kernel=case.kernel, heads=3, dim=5, num_axes=2)
    kernel = build_kernel(case.kernel, relative, 5)
    assert isinstance(relative, PositiveRelativeKernel)
    log_relative = relative.log_weights(
        query[:, :, 1:], GRID.offsets(dtype=torch.float64, device=DEVICE), scale=SCALE
    )
    if isinstance(kernel, FeatureKernel):
        kernel = kernel.with_statistics(query, key, scale=SCALE, query_mask=None, key_mask=None)
    # The dense weights may have a factor per row, which cancels.
    content = kernel.weights(query, key, scale=SCALE)
    weights = content[:, :, 1:] * torch.nn.functional.pad(log_relative, (1, 0)).exp()
    expected = prefix_value * weights[..., 0] / weights.sum(dim=-1)
    output = attend(case, [query, key, value], 1, relative, GRID)
    assert relative_error(output[:, :, 1:, 0], expected) <= TOLERANCE


@parametrize_by_kernel([pair for pair in PAIRS_WITH_POSITIONS if pair.relative is not None])
def test_a_class_token_with_a_position_is_found(pair: Case):
    # A former error: the class token had the position (side, 0).
    inputs = draw_inputs(1 + GRID.num_tokens)
    relative = build_relative(pair.relative, kernel=pair.kernel, heads=3, dim=5, num_axes=2)
    kernel = build_kernel(pair.kernel, relative, 5)
    place = torch.tensor([[GRID.shape[0], 0.0]], dtype=torch.float64, device=DEVICE)
    positions = torch.cat([place, GRID.positions(dtype=torch.float64, device=DEVICE)])
    broken = attention(*inputs, kernel=kernel, relative=relative, positions=positions, scale=SCALE)
    sound = attend(pair, inputs, 1, relative, GRID)
    assert relative_error(broken[:, :, :1], sound[:, :, :1]) > 1e-3


def test_prefix_tokens_of_a_constant_kernel():
    # With κ = 1 and log c(0) = a, a prefix token has the weight 1 and the cell has the weight e^a.
    query, key, value = draw_inputs(3, heads=1, dim_value=1)
    relative = build_relative("rotation", heads=1, dim=5, num_axes=1)
    assert isinstance(relative, PositiveRelativeKernel)
    weight = math.exp(
        float(relative.log_weights(query[:, :, 2:], query.new_zeros(1, 1, 1), scale=1.0))
    )
    output = attend(Case("constant", "rotation"), [query, key, value], 2, relative, Grid((1,)))
    expected = (value[:, 0, 0] + value[:, 0, 1] + weight * value[:, 0, 2]) / (2 + weight)
    assert relative_error(output[:, 0, 2], expected) <= TOLERANCE
