import pytest
import torch
from torch import Tensor

from teka import Grid
from teka.functional import ContentKernel, FeatureKernel, Softmax, SquaredRelu
from teka.functional.backends import dense
from teka.functional.kernels.content_kernel import DenseAttentionInputs
from teka.functional.positions import Positions
from teka.functional.relative.stationary import SeparableRelativeKernel
from tests.contracts.cases import (
    build_relative,
    draw_inputs,
    draw_mask,
    relative_error,
    with_leaves,
)


def make_positions(grid: Grid, num_prefix_tokens: int) -> Positions:
    return Positions(grid, num_prefix_tokens=num_prefix_tokens)


@pytest.mark.parametrize("kernel", [SquaredRelu(), Softmax()], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["rotation", "quadratic", "table"])
def test_dense_equals_the_product_of_content_and_relative_weights(
    kernel: ContentKernel, name: str, masked: bool, is_causal: bool
):
    grid = Grid((3, 5))
    mask = draw_mask(2, 16) if masked else torch.ones(2, 16, dtype=torch.bool)
    query, key, value = draw_inputs(16)
    relative = build_relative(name, heads=3, dim=5, num_axes=2)
    assert isinstance(relative, SeparableRelativeKernel)
    positions = make_positions(grid, 1)
    pairs = DenseAttentionInputs(
        query, key, value, kernel, scale=0.4, key_mask=mask if masked else None, is_causal=is_causal
    )
    output = relative.adapt_to_positions(positions).dense_attention(pairs, positions)
    if isinstance(kernel, FeatureKernel):
        content = kernel.query_features(query, scale=0.4) @ kernel.key_features(key, scale=0.4).mT
    else:
        content = torch.exp(0.4 * query @ key.mT)
    factor = torch.ones(1, 3, 16, 16, dtype=torch.float64)
    offsets = grid.offsets(dtype=torch.float64)
    factor[..., 1:, 1:] = relative.log_weights(query[:, :, 1:], offsets, scale=0.4).exp()
    weights = content * factor * mask[:, None, None, :]
    weights = weights.tril() if is_causal else weights
    total = weights.sum(dim=-1, keepdim=True)
    expected = torch.where(total > 0, weights @ value / total.clamp_min(1e-300), 0.0)
    assert relative_error(output, expected) < 1e-12


def output_and_gradients(grid: Grid, key_grid: Grid, num_prefix_tokens: int) -> list[Tensor]:
    """Return the output and the gradients of all inputs."""
    num_queries, num_keys = (num_prefix_tokens + side.num_tokens for side in (grid, key_grid))
    query, key, value = draw_inputs(max(num_queries, num_keys))
    query, key, value = (
        tensor[:, :, :size].clone().requires_grad_()
        for tensor, size in ((query, num_queries), (key, num_keys), (value, num_keys))
    )
    relative = build_relative("rotation", heads=3, dim=5, num_axes=grid.num_axes)
    assert relative is not None
    relative, leaves = with_leaves(relative)
    positions = Positions(grid, key=Positions(key_grid), num_prefix_tokens=num_prefix_tokens)
    pairs = DenseAttentionInputs(
        query, key, value, SquaredRelu(), scale=0.4, key_mask=None, is_causal=False
    )
    output = relative.dense_attention(pairs, positions)
    return [output, *torch.autograd.grad(output.sin().sum(), [query, key, value, *leaves.values()])]


def test_row_chunks_change_neither_outputs_nor_gradients(monkeypatch: pytest.MonkeyPatch):
    grid = Grid((5, 7))
    expected_results = output_and_gradients(grid, grid, 1)
    monkeypatch.setattr(dense, "MATRIX_ELEMENTS", 500)
    for result, expected in zip(output_and_gradients(grid, grid, 1), expected_results, strict=True):
        assert relative_error(result, expected) < 1e-12
