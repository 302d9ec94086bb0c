import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from teka import Grid
from teka.functional import GeneralizedQuadratic, Quadratic, Softmax
from teka.functional.positions import Positions


def build() -> GeneralizedQuadratic:
    return GeneralizedQuadratic.draw(torch.Generator().manual_seed(1), heads=3, dim=5, num_axes=2, kernel="softmax")


def offsets_of(*size: int) -> Tensor:
    return 3 * torch.randn(*size, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_it_is_the_formula_in_loops():
    relative, offsets = build(), offsets_of(11)
    found = relative.log_at(offsets)
    assert found.shape == (3, 11)
    for head in range(3):
        inverse = relative.precision_factor[head].T @ relative.precision_factor[head]
        for pair in range(11):
            away = -offsets[pair] - relative.center[head]
            assert float(found[head, pair]) == pytest.approx(float(away @ inverse @ away) / -2, abs=1e-12)


def test_offsets_of_any_rank_have_one_number_a_head_and_pair():
    relative, offsets = build(), offsets_of(4, 5, 7)
    found = relative.log_at(offsets)
    assert found.shape == (3, 4, 5, 7)
    assert torch.allclose(found[:, 2, 3, 6], relative.log_at(offsets[2, 3, 6]))


def test_with_a_round_precision_it_is_the_quadratic_kernel():
    alpha = torch.tensor([0.3, 0.7], dtype=torch.float64)
    center = offsets_of(2)
    round_factor = torch.sqrt(2 * alpha)[:, None, None] * torch.eye(2, dtype=torch.float64)
    for periods in (None, (5.0, None)):
        found = GeneralizedQuadratic(center, round_factor, periods).log_at(offsets_of(13))
        assert torch.allclose(found, Quadratic(center, alpha, periods).log_at(offsets_of(13)), atol=1e-12)


@given(turns=st.tuples(st.integers(-3, 3), st.integers(-3, 3)), spacing=st.floats(0.2, 3))
def test_on_a_torus_whole_turns_change_nothing(turns: tuple[int, int], spacing: float):
    sites = Positions(Grid((5, 7), spacing, periodic=True))
    relative, offsets = build().on(sites), offsets_of(11)
    moved = offsets + spacing * torch.tensor([5.0 * turns[0], 7.0 * turns[1]], dtype=torch.float64)
    assert torch.allclose(relative.log_at(moved), relative.log_at(offsets), atol=1e-11)


def test_every_parameter_has_a_gradient():
    center, factor = (tensor.requires_grad_() for tensor in (build().center, build().precision_factor))
    GeneralizedQuadratic(center, factor, (5.0, None)).log_at(offsets_of(11)).sum().backward()
    for tensor in (center, factor):
        assert tensor.grad is not None
        assert torch.count_nonzero(tensor.grad) == tensor.numel()


@pytest.mark.parametrize(
    ("center", "factor", "message"),
    [
        ((3,), (3, 2, 2), r"center has shape \(3,\), expected \(heads, axes\)"),
        ((3, 2), (3, 2), r"precision_factor has shape \(3, 2\), expected \(3, 2, 2\)"),
        ((3, 2), (3, 2, 1), "precision_factor has shape"),
        ((3, 2), (1, 2, 2), "precision_factor has shape"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    center: tuple[int, ...], factor: tuple[int, ...], message: str, as_users_run_it: None
):
    with pytest.raises(ValueError, match=message):
        GeneralizedQuadratic(torch.ones(center), torch.ones(factor))


@pytest.mark.parametrize(("heads", "num_axes"), [(2, 2), (3, 3)])
def test_other_numbers_of_heads_and_axes_are_refused(heads: int, num_axes: int):
    build().check(heads=3, dim=5, num_axes=2, kernel=Softmax())
    with pytest.raises(ValueError, match=rf"relative.center has shape \(3, 2\), expected \({heads}, {num_axes}\)"):
        build().check(heads=heads, dim=5, num_axes=num_axes, kernel=Softmax())
