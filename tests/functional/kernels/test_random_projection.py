import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator

from teka.functional import PROJECTIONS, draw_projection


@pytest.mark.parametrize("projection", PROJECTIONS)
@given(num_features=st.integers(1, 23), dim=st.integers(1, 7), seed=st.integers(0, 2**32))
def test_projection_shape_and_seed(projection: str, num_features: int, dim: int, seed: int):
    draws = [
        draw_projection(
            num_features, dim, generator=Generator().manual_seed(seed), projection=projection
        )
        for _ in range(2)
    ]
    assert draws[0].shape == (num_features, dim)
    assert draws[0].dtype == torch.float64
    assert torch.equal(*draws)


@pytest.mark.parametrize("projection", ["orthogonal", "fixed_norm"])
@given(num_features=st.integers(1, 23), dim=st.integers(1, 7))
def test_rows_of_a_block_are_orthogonal(projection: str, num_features: int, dim: int):
    drawn = draw_projection(
        num_features, dim, generator=Generator().manual_seed(0), projection=projection
    )
    for start in range(0, num_features, dim):
        block = drawn[start : start + dim]
        products = block @ block.T
        assert (products - products.diagonal().diag()).abs().max() < 1e-12


@given(num_features=st.integers(1, 23), dim=st.integers(1, 7), seed=st.integers(0, 2**32))
def test_fixed_norm_rows_have_length_root_d(num_features: int, dim: int, seed: int):
    generator = Generator().manual_seed(seed)
    drawn = draw_projection(num_features, dim, generator=generator, projection="fixed_norm")
    assert (drawn.norm(dim=-1) - math.sqrt(dim)).abs().max() < 1e-12


def test_fixed_norm_directions_are_uniform():
    generator = Generator().manual_seed(0)
    drawn = torch.cat(
        [draw_projection(7, 5, generator=generator, projection="fixed_norm") for _ in range(1500)]
    )
    assert drawn.mean(dim=0).abs().max() < 0.05
    assert (drawn.T @ drawn / len(drawn) - torch.eye(5)).abs().max() < 0.06


def test_fixed_norm_features_are_biased_downwards():
    total = torch.tensor([0.9, -0.4, 1.3], dtype=torch.float64)
    generator = Generator().manual_seed(0)
    drawn = torch.cat(
        [draw_projection(3, 3, generator=generator, projection="fixed_norm") for _ in range(3000)]
    )
    actual = torch.exp(drawn @ total).mean()
    # E exp(wᵀz) over directions in three dimensions is sinh(√3 ‖z‖) / (√3 ‖z‖), and for w ~ N(0, I)
    # exp(‖z‖²/2).
    length = math.sqrt(3) * float(total.norm())
    assert float(actual) == pytest.approx(math.sinh(length) / length, rel=0.05)
    assert math.sinh(length) / length < math.exp(float(total @ total) / 2)


@pytest.mark.parametrize("projection", ["orthogonal", "independent"])
def test_every_row_is_standard_normal(projection: str):
    generator = Generator().manual_seed(0)
    drawn = torch.cat(
        [draw_projection(7, 5, generator=generator, projection=projection) for _ in range(1500)]
    )
    # 52,500 numbers: standard errors of .004 for the mean, .006 for the variance and .02 for the
    # fourth moment.
    assert abs(drawn.mean()) < 0.02
    assert drawn.square().mean() == pytest.approx(1, abs=0.03)
    assert drawn.pow(4).mean() == pytest.approx(3, abs=0.2)
    covariance = drawn.T @ drawn / len(drawn)
    assert (covariance - torch.eye(5)).abs().max() < 0.06
    # χ²(5): the lengths of orthogonal rows vary as those of independent ones do.
    assert drawn.square().sum(dim=1).var() == pytest.approx(10, rel=0.08)


def test_generator_advances_between_draws():
    generator = Generator().manual_seed(0)
    assert not torch.equal(
        draw_projection(3, 4, generator=generator), draw_projection(3, 4, generator=generator)
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 5, "orthogonal"), "num_features must be at least 1.*got 0"),
        ((5, 0, "independent"), "dim must be at least 1.*got 0"),
        (
            (5, 5, "ortogonal"),
            "projection must be one of .*got 'ortogonal'.*Did you mean 'orthogonal'",
        ),
    ],
)
def test_invalid_arguments_raise(arguments: tuple[int, int, str], message: str):
    num_features, dim, projection = arguments
    with pytest.raises(ValueError, match=message):
        draw_projection(num_features, dim, generator=Generator(), projection=projection)
