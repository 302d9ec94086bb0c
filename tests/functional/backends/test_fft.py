import itertools
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor
from torch.autograd import grad

from teka import Grid
from teka.functional import GeneralizedQuadraticBias, attention
from teka.functional.backends import feature_chunks
from teka.functional.backends.fft import fft_attention_sums, find_fast_fft_length, have_same_spacing
from teka.functional.relative.stationary import StationaryRelativeKernel
from tests.contracts.cases import (
    build_relative,
    draw_inputs,
    draw_mask,
    relative_error,
    with_leaves,
)

FFT = sys.modules[fft_attention_sums.__module__]
STATIONARY = ("rotation", "quadratic", "generalized_quadratic", "table", "fourier")


def fft_and_dense(
    inputs: list[Tensor],
    relative: StationaryRelativeKernel,
    grid: Grid,
    key_grid: Grid | None = None,
    **options: Tensor | int,
) -> tuple[Tensor, Tensor]:
    fast, dense = (
        attention(  # pyright: ignore[reportCallIssue]
            *inputs,
            kernel="squared_relu",
            relative=relative,
            grid=grid,
            key_grid=key_grid,
            backend=backend,
            **options,  # pyright: ignore[reportArgumentType]
        )
        for backend in ("fft", "dense")
    )
    return fast, dense


def build(name: str, num_axes: int) -> StationaryRelativeKernel:
    relative = build_relative(name, heads=3, dim=5, num_axes=num_axes)
    assert isinstance(relative, StationaryRelativeKernel)
    return relative


SHAPES = [(1,), (7,), (16,), (3, 5), (7, 1), (4, 6), (2, 3, 5), (5, 3, 4)]


@given(
    st.sampled_from(SHAPES),
    st.sampled_from([1.0, 0.37, 2.0]),
    st.tuples(*[st.booleans()] * 3),
    st.sampled_from(STATIONARY),
    st.booleans(),
    st.integers(0, 2),
    st.integers(0, 3),
)
def test_fft_equals_dense(
    shape: tuple[int, ...],
    spacing: float,
    periodic: tuple[bool, ...],
    name: str,
    masked: bool,
    prefix: int,
    seed: int,
):
    grid = Grid(shape, spacing, periodic[: len(shape)])
    num_tokens = prefix + grid.num_tokens
    inputs = draw_inputs(num_tokens, seed=seed)
    options: dict[str, Tensor | int] = {"num_prefix_tokens": prefix}
    if masked:
        options["key_mask"] = draw_mask(2, num_tokens, seed)
    fast, dense = fft_and_dense(inputs, build(name, grid.num_axes), grid, None, **options)
    assert relative_error(fast, dense) < 1e-10


@pytest.mark.parametrize(
    ("grid", "key_grid"),
    [
        (Grid(7, origin=3.0), Grid(11)),
        (
            Grid((5, 4), 0.5, periodic=(True, False), origin=(1.0, -2.5)),
            Grid((5, 7), 0.5, periodic=(True, False)),
        ),
        (Grid(7, origin=0.5), Grid(11)),
        (Grid((5, 3), (0.5, 2.0), origin=(1.25, -3.0)), Grid((2, 7), (0.5, 2.0))),
        (
            Grid((5, 4), periodic=(False, True), origin=(0.0, 0.3)),
            Grid((3, 4), periodic=(False, True)),
        ),
        (Grid((3, 2, 5), origin=0.1), Grid((2, 5, 3))),
    ],
    ids=str,
)
def test_two_grids_with_equal_spacing_and_any_origin_equal_dense(grid: Grid, key_grid: Grid):
    query, _, _ = draw_inputs(grid.num_tokens)
    _, key, value = draw_inputs(key_grid.num_tokens, seed=1)
    for name in STATIONARY:
        if name == "table" and any(
            origin % step for origin, step in zip(grid.origin, grid.spacing, strict=True)
        ):
            continue  # a table has entries for whole cells only
        fast, dense = fft_and_dense([query, key, value], build(name, grid.num_axes), grid, key_grid)
        assert fast.shape[2] == grid.num_tokens
        assert relative_error(fast, dense) < 1e-10, name


def test_have_same_spacing():
    assert have_same_spacing(Grid(8), Grid(8))
    assert not have_same_spacing(Grid(8), Grid(4, spacing=2.0, origin=0.5))


def narrow_kernels() -> list[GeneralizedQuadraticBias]:
    """Return narrow Gaussians with centers in and outside the grid, so that some rows are tiny."""
    generator = Generator().manual_seed(0)
    kernels = []
    for precision, reach in ((1.0, 3.0), (5.0, 10.0), (50.0, 2.0), (50.0, 30.0)):
        center = reach * (2 * torch.rand(3, 2, generator=generator, dtype=torch.float64) - 1)
        factor = torch.randn(3, 2, 2, generator=generator, dtype=torch.float64) * precision**0.5
        kernels.append(GeneralizedQuadraticBias(center, factor))
    return kernels


@pytest.mark.parametrize("periodic", [(False, False), (False, True), (True, True)])
def test_rows_too_small_for_the_fft_are_recomputed(periodic: tuple[bool, bool]):
    grid, masks = Grid((11, 9), periodic=periodic), ({}, {"key_mask": draw_mask(2, 99)})
    for case, (relative, mask) in enumerate(itertools.product(narrow_kernels(), masks)):
        fast, dense = fft_and_dense(draw_inputs(99), relative, grid, None, **mask)
        assert relative_error(fast, dense) < 1e-10, case


def test_small_rows_are_wrong_if_they_are_not_recomputed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(FFT, "TOLERANCE", dict.fromkeys(FFT.TOLERANCE, float("inf")))
    wrong = 0
    for relative in narrow_kernels():
        fast, dense = fft_and_dense(draw_inputs(99), relative, Grid((11, 9)))
        wrong += not relative_error(fast, dense) < 0.1  # NaN is wrong too
    assert wrong >= 3


def test_recomputed_rows_are_accurate_in_float32():
    for relative in narrow_kernels():
        inputs = [tensor.float() for tensor in draw_inputs(99)]
        fast, _ = fft_and_dense(inputs, relative, Grid((11, 9)))
        _, dense = fft_and_dense([tensor.double() for tensor in inputs], relative, Grid((11, 9)))
        assert relative_error(fast.double(), dense) < 1e-4


@pytest.mark.parametrize("name", STATIONARY)
def test_gradients_equal_dense(name: str):
    grid = Grid((5, 3), periodic=(False, True))
    check_gradients(build(name, 2), grid, 15)


@pytest.mark.parametrize(
    "relative", narrow_kernels(), ids=["mild", "far", "narrow", "narrow and far"]
)
def test_gradients_of_recomputed_rows_equal_dense(relative: GeneralizedQuadraticBias):
    check_gradients(relative, Grid((11, 9)), 99)


def test_gradients_in_feature_chunks_equal_dense(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(feature_chunks, "CHUNK_ELEMENTS", 2**11)
    check_gradients(build("quadratic", 2), Grid((5, 7)), 35)


def check_gradients(relative: StationaryRelativeKernel, grid: Grid, num_tokens: int) -> None:
    learned, leaves = with_leaves(relative)
    assert isinstance(learned, StationaryRelativeKernel)
    inputs = [tensor.requires_grad_() for tensor in draw_inputs(num_tokens)]
    fast, dense = fft_and_dense(inputs, learned, grid)
    direction = torch.randn(fast.shape, dtype=fast.dtype, generator=Generator().manual_seed(0))
    variables = [*inputs, *leaves.values()]
    fft_gradients, dense_gradients = (
        grad((output * direction).sum(), variables) for output in (fast, dense)
    )
    for result, expected in zip(fft_gradients, dense_gradients, strict=True):
        assert relative_error(result, expected) < 1e-9


@pytest.mark.parametrize(
    ("least", "length"), [(1, 1), (7, 8), (9, 9), (11, 12), (13, 15), (511, 512), (257, 270)]
)
def test_next_fast_length_has_small_factors(least: int, length: int):
    assert find_fast_fft_length(least) == length
