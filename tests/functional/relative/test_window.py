import math

import pytest
import torch
from torch.nn.functional import conv2d, pad

from teka import Grid
from teka.functional import (
    Constant,
    ContentKernel,
    OptimalPositiveFeatures,
    Taylor2,
    WindowBias,
    attention,
)
from teka.functional.backends.local_window import Tiling
from teka.nn import TransformerBlock
from tests.contracts.cases import draw_inputs, relative_error

GRID = Grid((19, 11), periodic=(False, True))


@pytest.mark.parametrize("backend", ["dense", "windows"])
def test_constant_kernel_in_a_window_is_a_convolution(backend: str):
    value = draw_inputs(GRID.num_tokens, heads=1, dim=4)[2]
    bias = torch.randn(1, 5, 5, dtype=torch.float64)
    nothing = torch.zeros_like(value)
    output = attention(
        nothing,
        nothing,
        value,
        kernel=Constant(),
        relative=WindowBias(bias),
        grid=GRID,
        backend=backend,
    )

    def convolved(image: torch.Tensor) -> torch.Tensor:
        wrapped = pad(pad(image, (2, 2, 0, 0), mode="circular"), (0, 0, 2, 2))
        # A convolution of torch's adds what lies at the cell less the entry; ours is of query less
        # key.
        return conv2d(wrapped, bias.exp().flip(1, 2)[:, None])

    images = GRID.unflatten(value[:, 0]).flatten(0, 1)[:, None]
    expected = (convolved(images) / convolved(torch.ones_like(images))).unflatten(
        0, (len(value), -1)
    )[:, :, 0]
    assert relative_error(output[:, 0], GRID.flatten(expected)) <= 1e-12


@pytest.mark.parametrize(
    "kernel",
    [OptimalPositiveFeatures(torch.randn(6, 5).double()), Taylor2("mean")],
    ids=lambda kernel: kernel.name,
)
def test_fitted_kernels_work_in_tiles(kernel: ContentKernel):
    query, key, value = draw_inputs(GRID.num_tokens)
    assert max(Tiling(GRID, 2).counts) > 1
    relative = WindowBias(torch.randn(3, 5, 5, dtype=torch.float64))
    options = {"kernel": kernel, "relative": relative, "grid": GRID}
    actual = [
        attention(query, key + 1, value, **options, backend=backend)
        for backend in ("dense", "windows")
    ]
    assert relative_error(actual[1], actual[0]) <= 1e-10


@pytest.mark.parametrize("backend", ["dense", "windows"])
def test_keys_beyond_the_window_have_no_weight(backend: str):
    query, key, value = draw_inputs(GRID.num_tokens)
    relative = WindowBias(torch.randn(3, 5, 5, dtype=torch.float64))
    cells = GRID.positions()
    near = (GRID.wrap(cells - cells[3 * 11 + 1]).abs() <= 2).all(dim=-1)
    options = {"kernel": "softmax", "relative": relative, "grid": GRID, "backend": backend}
    changed = [
        torch.where(near[:, None], tensor, torch.full_like(tensor, math.pi))
        for tensor in (key, value)
    ]
    seen = [attention(query, *two, **options)[:, :, 3 * 11 + 1] for two in ((key, value), changed)]
    assert relative_error(*seen) <= 1e-12
    mask = ~near.expand(2, -1)
    leaves = [tensor.requires_grad_() for tensor in (query, key, value)]
    output = attention(*leaves, **options, key_mask=mask)
    assert (output[:, :, 3 * 11 + 1] == 0).all()
    assert all(
        tensor.isfinite().all() for tensor in torch.autograd.grad(output.square().sum(), leaves)
    )


def test_window_heads_have_linear_cost():
    block = TransformerBlock(8, 5, dim_head=3, window_reach=2).double()
    near = block.window_attention
    assert near is not None
    assert (near.heads, block.attention.heads) == (2, 3)
    costs = [
        near.head_groups()[0].estimate_costs(Grid((side, side)))["windows"] for side in (64, 128)
    ]
    assert costs[1].multiply_adds == 4 * costs[0].multiply_adds
    tokens = torch.randn(2, 48, 8, dtype=torch.float64)
    grid = Grid((8, 6), periodic=True)
    rolled = block(grid.flatten(grid.roll(grid.unflatten(tokens), (3, -2))), grid)
    assert (
        relative_error(
            rolled, grid.flatten(grid.roll(grid.unflatten(block(tokens, grid)), (3, -2)))
        )
        <= 1e-12
    )
    normed = block.attention_norm(tokens)
    both = tokens + block.attention(normed, grid) + near(normed, grid)
    assert relative_error(block(tokens, grid), both + block.mlp(block.mlp_norm(both))) <= 1e-12
    plain = TransformerBlock(8, 4, relative=None, window_reach=2).double()
    assert relative_error(plain(tokens, grid, num_queries=5), plain(tokens, grid)[:, :5]) <= 1e-12


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: WindowBias(torch.zeros(2, 3, 5)),
            r"bias must have shape \(heads, 2 reach \+ 1.*got \(2, 3, 5\)",
        ),
        (lambda: WindowBias(torch.zeros(2, 4, 4)), "bias must have"),
        (
            lambda: TransformerBlock(8, 1, window_reach=1),
            "heads must be at least 2 with window_reach=1.*got 1",
        ),
        (lambda: TransformerBlock(8, 2, window_reach=0), r"window_reach must be .*got 0"),
        (
            lambda: TransformerBlock(8, 3, window_reach=1),
            "heads must be a divisor of dim = 8.*got 3",
        ),
    ],
    ids=["not a square", "even sides", "one head", "no reach", "no divisor"],
)
def test_invalid_windows_raise(build, message: str):
    with pytest.raises(ValueError, match=message):
        build()
