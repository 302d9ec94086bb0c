import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from teka import Grid
from teka.functional import Quadratic, Softmax
from teka.functional.positions import Positions


def build() -> Quadratic:
    return Quadratic.draw(torch.Generator().manual_seed(1), heads=3, dim=5, num_axes=2, kernel="softmax")


def offsets_of(number: int = 11) -> Tensor:
    return 3 * torch.randn(number, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_it_is_the_formula_in_loops():
    relative, offsets = build(), offsets_of()
    found = relative.log_at(offsets)
    assert found.shape == (3, 11)
    for head in range(3):
        for pair, (down, right) in enumerate(offsets.tolist()):
            center = relative.center[head].tolist()
            expected = -float(relative.precision[head]) * ((-down - center[0]) ** 2 + (-right - center[1]) ** 2)
            assert float(found[head, pair]) == pytest.approx(expected, abs=1e-12)


def test_a_query_looks_at_the_key_that_lies_at_its_centre_away_from_it():
    relative = Quadratic(torch.tensor([[1.0, -2.0]]), torch.ones(1))
    positions = Grid((5, 7)).positions()
    log_kernel = relative.log_at(positions[:, None] - positions[None, :])[0]
    query, key = 1 * 7 + 4, 2 * 7 + 2
    assert int(log_kernel[query].argmax()) == key
    assert float(log_kernel[query, key]) == 0


def test_it_is_the_papers_inner_product_up_to_a_factor_of_the_query():
    # Equation 9: v = −α (1, −2Δ_1, −2Δ_2), r = (‖δ‖², δ_1, δ_2), δ = x_j − x_i; ‖Δ‖² cancels in the softmax.
    relative, offsets = build(), offsets_of()
    delta, (first, second) = -offsets, relative.center[2].tolist()
    vector = -relative.precision[2] * torch.tensor([1.0, -2 * first, -2 * second], dtype=torch.float64)
    table = torch.cat([delta.square().sum(-1, keepdim=True), delta], dim=-1)
    constant = relative.log_at(offsets)[2] - table @ vector
    assert torch.allclose(constant, constant[:1].expand(11), atol=1e-12)


@given(turns=st.tuples(st.integers(-3, 3), st.integers(-3, 3)), spacing=st.floats(0.2, 3))
def test_on_a_torus_whole_turns_change_nothing(turns: tuple[int, int], spacing: float):
    sites = Positions(Grid((5, 7), spacing, periodic=True))
    relative, offsets = build().on(sites), offsets_of()
    moved = offsets + spacing * torch.tensor([5.0 * turns[0], 7.0 * turns[1]], dtype=torch.float64)
    assert torch.allclose(relative.log_at(moved), relative.log_at(offsets), atol=1e-11)


def test_on_a_torus_the_distance_to_the_centre_is_the_shorter_one():
    sites = Positions(Grid((10, 10), periodic=(True, False)))
    relative = Quadratic(torch.tensor([[4.0, 4.0]]), torch.ones(1)).on(sites)
    # From 0 to the key 4 cells up is 8 cells from the centre, or 2 round the torus; along the other axis it is 8.
    assert relative.axis_log_kernel(0, torch.tensor([4.0])).tolist() == [[-4.0]]
    assert relative.axis_log_kernel(1, torch.tensor([4.0])).tolist() == [[-64.0]]


def test_every_parameter_has_a_gradient():
    center, precision = (tensor.requires_grad_() for tensor in (build().center, build().precision))
    Quadratic(center, precision, (5.0, 7.0)).log_at(offsets_of()).sum().backward()
    for tensor in (center, precision):
        assert tensor.grad is not None
        assert torch.count_nonzero(tensor.grad) == tensor.numel()


@pytest.mark.parametrize(
    ("center", "precision", "message"),
    [
        ((3,), (3,), r"center has shape \(3,\), expected \(heads, axes\)"),
        ((3, 2), (2,), r"precision has shape \(2,\), expected \(3,\)"),
        ((3, 2), (3, 1), "precision has shape"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    center: tuple[int, ...], precision: tuple[int, ...], message: str, as_users_run_it: None
):
    with pytest.raises(ValueError, match=message):
        Quadratic(torch.ones(center), torch.ones(precision))


def test_a_negative_precision_is_refused():
    with pytest.raises(ValueError, match=r"the least number of precision is -0.5, expected at least 0"):
        Quadratic(torch.ones(3, 2), torch.tensor([1.0, -0.5, 2.0]))


@pytest.mark.parametrize(("heads", "num_axes"), [(2, 2), (3, 3)])
def test_other_numbers_of_heads_and_axes_are_refused(heads: int, num_axes: int):
    build().check(heads=3, dim=5, num_axes=2, kernel=Softmax())
    with pytest.raises(ValueError, match=rf"relative.center has shape \(3, 2\), expected \({heads}, {num_axes}\)"):
        build().check(heads=heads, dim=5, num_axes=num_axes, kernel=Softmax())


def test_far_away_it_is_finite():
    assert math.isfinite(float(build().log_at(torch.full((1, 2), 1e9)).min()))
