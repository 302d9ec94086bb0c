from dataclasses import dataclass

import pytest
import torch

from teka import Grid
from teka.functional import (
    BACKENDS,
    ClippedDistanceBias,
    ContentKernel,
    RelativeKernel,
    SinusoidalBias,
    Softmax,
    SquaredRelu,
    attention,
)
from teka.functional.attention_plan import AttentionPlan
from teka.functional.backends.costs import Cost, select_backend
from teka.functional.positions import Positions
from teka.functional.relative import make_relative_kernel


def costs(
    kernel: ContentKernel,
    relative: RelativeKernel | None,
    grid: Grid | None,
    *,
    num_tokens: int,
    dim: int,
    is_causal: bool = False,
    key_grid: Grid | None = None,
    batch: int = 1,
) -> dict[str, Cost]:
    positions = Positions(grid, key=None if key_grid is None else Positions(key_grid))
    num_keys = num_tokens if key_grid is None else key_grid.num_tokens
    plan = AttentionPlan(kernel, relative, positions, 1.0, is_causal)
    return plan.estimate_costs(
        heads=2, num_queries=num_tokens, num_keys=num_keys, dim=dim, dim_value=dim, batch=batch
    )


def rotation() -> SinusoidalBias:
    relative = make_relative_kernel("rotation", heads=1, dim=16, num_axes=2, kernel="squared_relu")
    assert isinstance(relative, SinusoidalBias)
    return relative


def test_softmax_has_only_the_dense_backend():
    assert set(costs(Softmax(), None, None, num_tokens=4096, dim=16)) == {"dense"}


@pytest.mark.parametrize(("side", "expected"), [(8, "dense"), (64, "toeplitz")])
def test_rotation_uses_toeplitz_on_large_grids(side: int, expected: str):
    backends = costs(SquaredRelu(), rotation(), Grid((side, side)), num_tokens=side**2, dim=16)
    assert set(backends) == {"dense", "toeplitz", "fft"}
    assert select_backend("auto", backends) == expected


@pytest.mark.parametrize(("side", "expected"), [(16, "dense"), (64, "toeplitz")])
def test_rotation_uses_the_faster_backend_for_heads_of_32(side: int, expected: str):
    backends = costs(SquaredRelu(), rotation(), Grid((side, side)), num_tokens=side**2, dim=32)
    assert select_backend("auto", backends) == expected


@pytest.mark.parametrize(("num_tokens", "expected"), [(4, "dense"), (1000, "linear")])
def test_many_tokens_without_positions_use_linear(num_tokens: int, expected: str):
    assert (
        select_backend("auto", costs(SquaredRelu(), None, None, num_tokens=num_tokens, dim=16))
        == expected
    )


def test_large_batches_change_the_backend():
    # With 8 heads and 32 samples, the expected backends took 0.7 and 0.6 of the time of the other.
    waves = make_relative_kernel("fourier", heads=2, dim=32, num_axes=2, kernel="squared_relu")
    for relative, side, alone, together in (
        (None, 8, "dense", "linear"),
        (waves, 12, "linear", "dense"),
    ):
        for batch, expected in ((1, alone), (32, together)):
            backends = costs(
                SquaredRelu(), relative, Grid((side, side)), num_tokens=side**2, dim=32, batch=batch
            )
            assert select_backend("auto", backends) == expected


def test_rings_need_a_grid_with_spacing_one():
    relative = ClippedDistanceBias(torch.zeros(4, 16))
    for grid, expected in (
        (Grid((9, 9)), {"dense", "rings"}),
        (Grid((9, 9), 2.0), {"dense"}),
        (Grid((4, 9), periodic=True), {"dense"}),
        (None, {"dense"}),
    ):
        assert set(costs(SquaredRelu(), relative, grid, num_tokens=81, dim=16)) == expected


@pytest.mark.parametrize("relative", [None, rotation(), ClippedDistanceBias(torch.zeros(7, 16))])
def test_fast_backends_scale_better_than_dense(relative: RelativeKernel | None):
    small, large = (
        costs(SquaredRelu(), relative, Grid((side, side)), num_tokens=side**2, dim=16)
        for side in (32, 64)
    )
    growth = {name: large[name].multiply_adds / small[name].multiply_adds for name in small}
    assert growth.pop("dense") == pytest.approx(16)
    # Linear in the number of tokens, times the sides for one matrix per axis.
    assert all(factor <= 8 for factor in growth.values())


def test_bytes_cost_more_on_a_gpu():
    cost = Cost(1000, 100)
    assert (
        cost.estimated_time("dense", "cuda")
        == cost.estimated_time("linear", "xpu")
        == 1000 + 20 * 100
    )
    assert cost.estimated_time("dense") != cost.estimated_time("linear")


def test_causal_attention_has_fewer_backends():
    sizes = {"num_tokens": 81, "dim": 16, "is_causal": True}
    assert set(costs(SquaredRelu(), None, None, **sizes)) == {"dense", "linear"}
    assert set(costs(SquaredRelu(), rotation(), Grid((9, 9)), **sizes)) == {"dense"}
    assert set(
        costs(SquaredRelu(), ClippedDistanceBias(torch.zeros(4, 16)), Grid((9, 9)), **sizes)
    ) == {"dense"}
    assert set(
        costs(SquaredRelu(), ClippedDistanceBias(torch.zeros(4, 16)), Grid(81), **sizes)
    ) == {"dense", "rings"}


def test_two_grids_have_fewer_backends():
    fine, coarse = Grid((8, 8)), Grid((4, 4), spacing=2.0, origin=0.5)
    backends = costs(SquaredRelu(), rotation(), coarse, num_tokens=16, dim=16, key_grid=fine)
    assert set(backends) == {"dense", "toeplitz"}
    backends = costs(
        SquaredRelu(), rotation(), Grid((4, 4), origin=2.0), num_tokens=16, dim=16, key_grid=fine
    )
    assert set(backends) == {"dense", "toeplitz", "fft"}


@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "auto"])
def test_named_backend_is_used_or_an_error(name: str):
    assert select_backend(name, {"dense": Cost(1, 0), name: Cost(2, 0)}) == name
    with pytest.raises(
        ValueError, match=rf"backend must be one of 'auto', 'other' for this kernel.*got '{name}'"
    ):
        select_backend(name, {"other": Cost(1, 0)})


def test_unknown_backend_suggests_the_closest_name():
    with pytest.raises(ValueError, match="Did you mean 'toeplitz'"):
        select_backend("toplitz", {"dense": Cost(1, 0)})


@dataclass(frozen=True, slots=True)
class Slotted(ClippedDistanceBias):
    """A relative kernel whose settings are not in `__dict__`."""


def test_settings_in_slots_are_part_of_the_cache_key():
    query, options = (
        torch.randn(1, 1, 256, 4),
        {"kernel": "relu", "grid": Grid((16, 16), periodic=True)},
    )
    attention(query, query, query, relative=Slotted(torch.randn(3, 4)), backend="rings", **options)
    with pytest.raises(ValueError, match=r"backend must be .*got 'rings'"):
        attention(
            query, query, query, relative=Slotted(torch.randn(12, 4)), backend="rings", **options
        )
