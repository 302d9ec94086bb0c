import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from teka import Grid
from teka.functional import BiasTable, GeneralizedQuadraticBias, QuadraticBias
from teka.functional.positions import Positions


def build_quadratic() -> QuadraticBias:
    return QuadraticBias.make_random_example(
        torch.Generator().manual_seed(1), heads=3, dim=5, num_axes=2, kernel="softmax"
    )


def draw_offsets(number: int = 11) -> Tensor:
    return 3 * torch.randn(
        number, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )


def test_log_kernel_equals_formula():
    relative, offsets = build_quadratic(), draw_offsets()
    actual = relative.log_weight_at(offsets)
    assert actual.shape == (3, 11)
    for head in range(3):
        for pair, (down, right) in enumerate(offsets.tolist()):
            center = relative.center[head].tolist()
            expected = -float(relative.precision[head]) * (
                (-down - center[0]) ** 2 + (-right - center[1]) ** 2
            )
            assert float(actual[head, pair]) == pytest.approx(expected, abs=1e-12)


def test_query_attends_to_its_center():
    relative = QuadraticBias(torch.tensor([[1.0, -2.0]]), torch.ones(1))
    positions = Grid((5, 7)).positions()
    log_weights = relative.log_weight_at(positions[:, None] - positions[None, :])[0]
    query, key = 1 * 7 + 4, 2 * 7 + 2
    assert int(log_weights[query].argmax()) == key
    assert float(log_weights[query, key]) == 0


def test_quadratic_equals_paper_up_to_query_factor():
    # Equation 9: v = −α (1, −2Δ_1, −2Δ_2), r = (‖δ‖², δ_1, δ_2), δ = x_j − x_i; ‖Δ‖² cancels in the
    # softmax.
    relative, offsets = build_quadratic(), draw_offsets()
    delta, (first, second) = -offsets, relative.center[2].tolist()
    vector = -relative.precision[2] * torch.tensor(
        [1.0, -2 * first, -2 * second], dtype=torch.float64
    )
    table = torch.cat([delta.square().sum(-1, keepdim=True), delta], dim=-1)
    constant = relative.log_weight_at(offsets)[2] - table @ vector
    assert torch.allclose(constant, constant[:1].expand(11), atol=1e-12)


@given(turns=st.tuples(st.integers(-3, 3), st.integers(-3, 3)), spacing=st.floats(0.2, 3))
def test_kernel_is_periodic_on_a_torus(turns: tuple[int, int], spacing: float):
    grid_positions = Positions(Grid((5, 7), spacing, periodic=True))
    relative, offsets = build_quadratic().adapt_to_positions(grid_positions), draw_offsets()
    moved = offsets + spacing * torch.tensor([5.0 * turns[0], 7.0 * turns[1]], dtype=torch.float64)
    assert torch.allclose(
        relative.log_weight_at(moved), relative.log_weight_at(offsets), atol=1e-11
    )


def test_distance_on_a_torus_is_the_shorter_one():
    grid_positions = Positions(Grid((10, 10), periodic=(True, False)))
    relative = QuadraticBias(torch.tensor([[4.0, 4.0]]), torch.ones(1)).adapt_to_positions(
        grid_positions
    )
    # From 0 to the key 4 cells up is 8 cells from the centre, or 2 round the torus; along the other
    # axis it is 8.
    assert relative.axis_log_weights(0, torch.tensor([4.0])).tolist() == [[-4.0]]
    assert relative.axis_log_weights(1, torch.tensor([4.0])).tolist() == [[-64.0]]


def test_quadratic_parameters_have_gradients():
    center, precision = (
        tensor.requires_grad_()
        for tensor in (build_quadratic().center, build_quadratic().precision)
    )
    QuadraticBias(center, precision, (5.0, 7.0)).log_weight_at(draw_offsets()).sum().backward()
    for tensor in (center, precision):
        assert tensor.grad is not None
        assert torch.count_nonzero(tensor.grad) == tensor.numel()


@pytest.mark.parametrize(
    ("center", "precision", "message"),
    [
        ((3,), (3,), r"center must have shape \(heads, axes\).*got \(3,\)"),
        ((3, 2), (2,), r"precision must have shape \(3,\).*got \(2,\)"),
        ((3, 2), (3, 1), "precision must have"),
    ],
)
def test_invalid_shapes_raise(
    center: tuple[int, ...], precision: tuple[int, ...], message: str, unchecked_annotations: None
):
    with pytest.raises(ValueError, match=message):
        QuadraticBias(torch.ones(center), torch.ones(precision))


def test_negative_precision_raises():
    with pytest.raises(
        ValueError, match=r"the smallest element of precision must be at least 0.*got -0.5"
    ):
        QuadraticBias(torch.ones(3, 2), torch.tensor([1.0, -0.5, 2.0]))


def test_quadratic_is_finite_at_large_offsets():
    assert math.isfinite(float(build_quadratic().log_weight_at(torch.full((1, 2), 1e9)).min()))


def build_generalized_quadratic() -> GeneralizedQuadraticBias:
    return GeneralizedQuadraticBias.make_random_example(
        torch.Generator().manual_seed(1), heads=3, dim=5, num_axes=2, kernel="softmax"
    )


def draw_offsets_of_shape(*size: int) -> Tensor:
    return 3 * torch.randn(
        *size, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )


def test_generalized_quadratic_equals_formula():
    relative, offsets = build_generalized_quadratic(), draw_offsets_of_shape(11)
    actual = relative.log_weight_at(offsets)
    assert actual.shape == (3, 11)
    for head in range(3):
        inverse = relative.precision_factor[head].T @ relative.precision_factor[head]
        for pair in range(11):
            away = -offsets[pair] - relative.center[head]
            assert float(actual[head, pair]) == pytest.approx(
                float(away @ inverse @ away) / -2, abs=1e-12
            )


def test_offsets_of_any_rank():
    relative, offsets = (build_generalized_quadratic(), draw_offsets_of_shape(4, 5, 7))
    actual = relative.log_weight_at(offsets)
    assert actual.shape == (3, 4, 5, 7)
    assert torch.allclose(actual[:, 2, 3, 6], relative.log_weight_at(offsets[2, 3, 6]))


def test_isotropic_precision_equals_quadratic():
    alpha = torch.tensor([0.3, 0.7], dtype=torch.float64)
    center = draw_offsets_of_shape(2)
    round_factor = torch.sqrt(2 * alpha)[:, None, None] * torch.eye(2, dtype=torch.float64)
    for periods in (None, (5.0, None)):
        actual = GeneralizedQuadraticBias(center, round_factor, periods).log_weight_at(
            draw_offsets_of_shape(13)
        )
        assert torch.allclose(
            actual,
            QuadraticBias(center, alpha, periods).log_weight_at(draw_offsets_of_shape(13)),
            atol=1e-12,
        )


@given(turns=st.tuples(st.integers(-3, 3), st.integers(-3, 3)), spacing=st.floats(0.2, 3))
def test_generalized_quadratic_is_periodic_on_a_torus(turns: tuple[int, int], spacing: float):
    grid_positions = Positions(Grid((5, 7), spacing, periodic=True))
    relative, offsets = (
        build_generalized_quadratic().adapt_to_positions(grid_positions),
        draw_offsets_of_shape(11),
    )
    moved = offsets + spacing * torch.tensor([5.0 * turns[0], 7.0 * turns[1]], dtype=torch.float64)
    assert torch.allclose(
        relative.log_weight_at(moved), relative.log_weight_at(offsets), atol=1e-11
    )


def test_generalized_quadratic_parameters_have_gradients():
    center, factor = (
        tensor.requires_grad_()
        for tensor in (
            build_generalized_quadratic().center,
            build_generalized_quadratic().precision_factor,
        )
    )
    GeneralizedQuadraticBias(center, factor, (5.0, None)).log_weight_at(
        draw_offsets_of_shape(11)
    ).sum().backward()
    for tensor in (center, factor):
        assert tensor.grad is not None
        assert torch.count_nonzero(tensor.grad) == tensor.numel()


@pytest.mark.parametrize(
    ("center", "factor", "message"),
    [
        ((3,), (3, 2, 2), r"center must have shape \(heads, axes\).*got \(3,\)"),
        ((3, 2), (3, 2), r"precision_factor must have shape \(3, 2, 2\).*got \(3, 2\)"),
        ((3, 2), (3, 2, 1), "precision_factor must have"),
        ((3, 2), (1, 2, 2), "precision_factor must have"),
    ],
)
def test_generalized_quadratic_inconsistent_shapes_raise(
    center: tuple[int, ...], factor: tuple[int, ...], message: str, unchecked_annotations: None
):
    with pytest.raises(ValueError, match=message):
        GeneralizedQuadraticBias(torch.ones(center), torch.ones(factor))


def build_table(num_axes: int = 2) -> BiasTable:
    return BiasTable.make_random_example(
        torch.Generator().manual_seed(1), heads=3, dim=5, num_axes=num_axes, kernel="softmax"
    )


def between(query: Grid, key: Grid | None = None) -> Positions:
    return Positions(query, key=Positions(query if key is None else key))


@pytest.mark.parametrize("spacing", [(1.0, 1.0), (0.1, 3.7)])
def test_table_is_row_plus_column(spacing: tuple[float, float]):
    grid = Grid((5, 7), spacing)
    relative = build_table().adapt_to_positions(between(grid))
    actual = relative.log_weight_at(grid.offsets(dtype=torch.float64))
    for i in range(35):
        for j in range(35):
            down, right = i // 7 - j // 7, i % 7 - j % 7
            row = relative.tables[:, 0, 3 + max(-3, min(3, down))]
            column = relative.tables[:, 1, 3 + max(-3, min(3, right))]
            assert torch.allclose(actual[:, i, j], row + column, atol=1e-12)


def test_table_with_one_entry_is_constant():
    relative = BiasTable(torch.full((2, 1, 1), 0.5))
    assert relative.max_offset == 0
    assert relative.log_weight_at(torch.tensor([[-4.0], [0.0], [9.0]])).tolist() == [[0.5] * 3] * 2


@given(turns=st.integers(-3, 3), spacing=st.floats(0.2, 3))
def test_table_is_shift_equivariant_on_a_torus(turns: int, spacing: float):
    grid = Grid((4, 7), spacing, periodic=(False, True))
    relative, offsets = (
        build_table().adapt_to_positions(between(grid)),
        grid.offsets(dtype=torch.float64),
    )
    positions = grid.positions(dtype=torch.float64)
    rolled = positions + torch.tensor([0.0, turns * grid.spacing[1]], dtype=torch.float64)
    moved = grid.wrap(rolled[:, None] - rolled[None, :])
    assert torch.equal(relative.log_weight_at(moved), relative.log_weight_at(offsets))


@pytest.mark.parametrize(
    ("query", "key", "width"),
    [
        (Grid(8, 2.0), Grid(16), 1.0),
        (Grid(16, 0.1, origin=0.7), Grid(5, 0.3), 0.1),
        (Grid(1, 17.0, origin=3.0), Grid(5, 0.5), 0.5),
        (Grid(5, 0.5), Grid(1, 17.0, origin=3.0), 0.5),
        (Grid(1, 2.0, origin=4.0), Grid(1, 3.0), 2.0),
    ],
)
def test_table_uses_the_finer_cells_of_two_grids(query: Grid, key: Grid, width: float):
    assert build_table(1).adapt_to_positions(between(query, key)).spacing == (width,)


@pytest.mark.parametrize(
    ("query", "key"),
    [
        (Grid(8, 2.0, origin=0.5), Grid(16)),
        (Grid(8, 2.0), Grid(16, 3.0)),
        (Grid(8), Grid(16, origin=0.25)),
        (Grid((5, 8)), Grid((5, 8), (1.0, 0.7))),
    ],
)
def test_misaligned_grids_raise(query: Grid, key: Grid):
    with pytest.raises(ValueError, match=r"key_grid must be aligned with"):
        build_table(query.num_axes).adapt_to_positions(between(query, key))


def test_positions_without_a_grid_raise():
    bare, grid = Positions(points=torch.zeros(7, 2)), Positions(Grid((5, 7)))
    for argument, placement in (("grid", bare), ("key_grid", replace(grid, key=bare))):
        with pytest.raises(
            ValueError, match=rf"^{argument} must be a grid, not bare positions, with.*got None"
        ):
            build_table().adapt_to_positions(placement)


def test_used_table_entries_have_gradients():
    tables = build_table().tables.requires_grad_()
    BiasTable(tables).log_weight_at(Grid((4, 5)).offsets(dtype=torch.float64)).sum().backward()
    assert tables.grad is not None
    assert torch.count_nonzero(tables.grad) == tables.numel()


@pytest.mark.parametrize("size", [(3, 7), (3, 2, 6)])
def test_tables_of_invalid_shape_raise(size: tuple[int, ...], unchecked_annotations: None):
    message = r"tables must have shape \(heads, axes, (entries|2 max_offset \+ 1)\)"
    with pytest.raises(ValueError, match=message):
        BiasTable(torch.ones(size))
