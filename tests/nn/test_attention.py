import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from teka import Grid
from teka.functional import KERNELS
from teka.nn import Attention
from tests.contracts.cases import PAIRS, Case, parametrize_by_kernel, relative_error

GRID = Grid((3, 5))


def build(seed: int = 0, **options: Any) -> Attention:
    torch.manual_seed(seed)
    options = {"relative": None, **options}
    return Attention(options.pop("dim", 8), options.pop("heads", 2), **options)


def draw_tokens(num_tokens: int = 16, dim: int = 8) -> Tensor:
    return torch.randn(2, num_tokens, dim, generator=torch.Generator().manual_seed(1))


def train_layer(layer: nn.Module, *arguments: Any, steps: int = 1) -> dict[str, Tensor]:
    """Train a layer for some steps, and return the gradients."""
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for step in range(steps + 1):
        optimizer.zero_grad()
        output = layer(*arguments)
        target = torch.sin(torch.arange(output.numel(), dtype=output.dtype)).reshape(output.shape)
        (output - target).square().mean().backward()
        if step < steps:
            optimizer.step()
    return {
        name: parameter.grad
        for name, parameter in layer.named_parameters()
        if parameter.grad is not None
    }


@parametrize_by_kernel(PAIRS, qkv_bias=[True, False])
def test_every_parameter_has_a_finite_nonzero_gradient_after_one_step(pair: Case, qkv_bias: bool):
    layer = build(kernel=pair.kernel, relative=pair.relative, qkv_bias=qkv_bias)
    # Trigonometric features overflow for long vectors, as documented.
    gradients = train_layer(
        layer, draw_tokens() * (0.3 if pair.kernel == "trigonometric" else 1.0), GRID, None, 1
    )
    for name, _ in layer.named_parameters():
        assert name in gradients, name
        assert torch.isfinite(gradients[name]).all(), name
        # A bias that cancels would have a gradient of rounding errors.
        assert gradients[name].abs().max() > 1e-8, name


@pytest.mark.parametrize(
    ("relative", "learned"),
    [
        ("rotation", {"frequency", "cosine_weight", "sine_weight"}),
        ("rotation_joint", {"frequency", "cosine_weight", "sine_weight"}),
        ("clipped", {"distance_embedding"}),
        ("clipped_features", {"distance_embedding"}),
    ],
)
def test_parameters_of_relative_kernels_learn(relative: str, learned: set[str]):
    layer = build(kernel="softmax", relative=relative)
    assert layer.relative is not None
    before = {
        name: parameter.detach().clone() for name, parameter in layer.relative.named_parameters()
    }
    assert set(before) == learned
    train_layer(layer, draw_tokens(), GRID, None, 1, steps=3)
    for name, parameter in layer.relative.named_parameters():
        assert not torch.equal(parameter, before[name]), name


@pytest.mark.parametrize(
    ("relative", "heads"), [("clipped", 2), ("clipped", 3), ("clipped_features", 4)]
)
def test_half_of_the_heads_of_clipped_attend_by_position(relative: str, heads: int):
    layer = build(dim=4 * heads, heads=heads, relative=relative).double()
    assert layer.relative is not None
    for parameter in layer.relative.parameters():
        nn.init.normal_(parameter)
    layer.output = nn.Linear(4 * heads, 4 * heads, bias=False).double()
    nn.init.eye_(layer.output.weight)  # so that the outputs of the heads are visible
    num_content = heads - heads // 2
    tokens = draw_tokens(15, 4 * heads).double()
    order = torch.randperm(15, generator=torch.Generator().manual_seed(2))
    change = (
        (layer(tokens[:, order], GRID) - layer(tokens, GRID)[:, order])
        .abs()
        .amax(dim=(0, 1))
        .reshape(heads, 4)
    )
    assert (change[:num_content] < 1e-10).all()
    assert (change[num_content:] > 1e-3).all()
    # Position heads have no keys.
    assert layer.key is not None
    assert layer.key.out_features == 4 * num_content


def test_all_heads_of_rotation_attend_by_content_and_position():
    layer = build(relative="rotation").double()
    layer.output = nn.Linear(8, 8, bias=False).double()
    nn.init.eye_(layer.output.weight)
    tokens, order = draw_tokens(15).double(), torch.arange(14, -1, -1)
    change = (layer(tokens[:, order], GRID) - layer(tokens, GRID)[:, order]).abs().amax(dim=(0, 1))
    assert (change > 1e-3).all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_any_number_of_heads_and_axes(kernel: str):
    for place, pair in enumerate(pair for pair in PAIRS if pair.kernel == kernel):
        shape, heads = [(11,), (5, 7), (2, 3, 4)][place % 3], 2 + place % 2
        layer = build(
            dim=4 * heads, heads=heads, kernel=kernel, relative=pair.relative, num_axes=len(shape)
        )
        tokens = draw_tokens(1 + math.prod(shape), 4 * heads)
        assert layer(tokens, Grid(shape), None, 1).shape == tokens.shape, pair


def test_grid_is_ignored_without_a_relative_kernel():
    layer, tokens = build(), draw_tokens(15)
    assert torch.equal(layer(tokens), layer(tokens, GRID))


def test_softmax_layer_equals_nn_multihead_attention():
    layer = build(kernel="softmax").double()
    twin = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    assert layer.query is not None
    assert layer.key is not None
    assert layer.value is not None
    with torch.no_grad():
        twin.in_proj_weight.copy_(
            torch.cat([part.weight for part in (layer.query, layer.key, layer.value)])
        )
        biases = [layer.query.bias, torch.zeros(8), layer.get_parameter("value.bias")]
        twin.in_proj_bias.copy_(torch.cat([bias.double() for bias in biases]))
    twin.out_proj.load_state_dict(layer.output.state_dict())
    tokens, mask = draw_tokens().double(), torch.ones(2, 16, dtype=torch.bool)
    mask[1, 5:] = False
    expected = twin(tokens, tokens, tokens, key_padding_mask=~mask, need_weights=False)[0]
    assert relative_error(layer(tokens, None, mask), expected) < 1e-12


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="linear"),
        pytest.param({"causal": True, "num_axes": 1}, id="causal linear"),
        pytest.param({"relative": "rotation", "backend": "toeplitz"}, id="toeplitz"),
        pytest.param({"relative": "rotation", "backend": "dense"}, id="dense"),
        pytest.param({"relative": "clipped", "backend": "rings"}, id="rings"),
    ],
)
def test_activation_checkpointing_supports_second_derivatives(options: dict[str, Any]):
    grid = Grid(1024) if options.get("causal") else Grid((23, 13))
    torch.manual_seed(0)
    layer, tokens = (
        Attention(4, 2, **options).double(),
        draw_tokens(grid.num_tokens, dim=4).double(),
    )

    def gradients(attend: Callable[..., Tensor]) -> list[Tensor]:
        leaves = [tokens.requires_grad_(), *layer.parameters()]
        plain = torch.autograd.grad(attend(tokens, grid).square().sum(), leaves)
        first, *_ = torch.autograd.grad(
            attend(tokens, grid).square().sum(), leaves, create_graph=True
        )
        second = torch.autograd.grad(first.square().sum(), leaves)
        return [*plain, first.detach(), *second]

    again = partial(checkpoint, layer, use_reentrant=False)
    for gradient, expected in zip(gradients(again), gradients(layer), strict=True):
        assert relative_error(gradient, expected) < 1e-12


# Without "optimal", which is fitted to all queries.
UNPLACED = [pair for pair in PAIRS if pair.relative is None and pair.kernel != "optimal"]


def test_num_queries_returns_the_first_outputs():
    tokens = draw_tokens().double()
    for pair, num_queries in zip(UNPLACED, itertools.cycle([1, 5, 16]), strict=False):
        layer = build(kernel=pair.kernel).double()
        for arguments in ((None, None, 0), (GRID, torch.arange(32).reshape(2, 16) % 3 > 0, 1)):
            expected = layer(tokens, *arguments)[:, :num_queries]
            assert relative_error(layer(tokens, *arguments, num_queries), expected) < 1e-12, pair


def test_default_layer_is_linear_and_depends_on_relative_positions():
    grid = Grid((5, 7), periodic=True)
    torch.manual_seed(0)
    layer, tokens = Attention(8, 2).double(), draw_tokens(35).double()
    assert layer.chosen_backend(Grid((512, 512))) == "linear"
    images = grid.unflatten(tokens)
    moved = layer(grid.flatten(grid.roll(images, (2, -3))), grid)
    assert (
        relative_error(moved, grid.flatten(grid.roll(grid.unflatten(layer(tokens, grid)), (2, -3))))
        < 1e-12
    )
    shuffle = torch.randperm(35, generator=torch.Generator().manual_seed(2))
    assert relative_error(layer(tokens[:, shuffle], grid), layer(tokens, grid)[:, shuffle]) > 1e-2


# The shapes of a kernel do not depend on those of a relative kernel.
APART = [
    pair
    for pair in PAIRS
    if pair.relative is None
    or pair.kernel == "squared_relu"
    or not any(other.relative is None for other in PAIRS if other.kernel == pair.kernel)
]


@parametrize_by_kernel(APART)
def test_meta_tensors_have_shapes_and_gradients(pair: Case):
    with torch.device("meta"):
        layer, tokens = build(kernel=pair.kernel, relative=pair.relative), draw_tokens().to("meta")
    output = layer(tokens, GRID, None, 1)
    output.sum().backward()
    assert output.shape == tokens.shape
    assert all(parameter.grad is not None for parameter in layer.parameters())
