"""An empty batch gives an empty output and zero gradients, as in layers of PyTorch."""

import itertools
from typing import Any

import torch
from torch import Tensor, nn

from teka import Grid
from teka.functional import RELATIVES, attention, decode
from teka.models import Performer
from teka.models.performer_config import POOLS, POSITIONS
from teka.nn import (
    Attention,
    AttentionPool,
    SinusoidalPositionEmbedding,
    SpaceToDepth,
    TransformerBlock,
)
from tests.contracts.cases import (
    CAUSAL_CASES,
    PAIRS,
    SUPPORTED_CASES,
    Case,
    build_kernel,
    build_relative,
    draw_inputs,
    for_each,
    has_features,
    is_valid_pair,
    parametrize_by_kernel,
    with_leaves,
)

# Relative kernels that support decoding.
DECODABLE = (None, "clipped", "clipped_features", "fourier", "rotary", "rotation_joint")


def attend(case: Case, grid: Grid, *, first: int, is_causal: bool) -> None:
    """Run attention of an empty batch, forward and backward, with masks and a prefix."""
    num_tokens = first + grid.num_tokens
    inputs = [tensor.requires_grad_() for tensor in draw_inputs(num_tokens, batch=0)]
    relative = build_relative(
        case.relative, heads=3, dim=5, num_axes=grid.num_axes, kernel=case.kernel, max_distance=2
    )
    kernel, leaves = build_kernel(case.kernel, relative, 5), {}
    if relative is not None:
        relative, leaves = with_leaves(relative)
    mask = torch.ones(0, num_tokens, dtype=torch.bool)
    output = attention(
        *inputs,
        kernel=kernel,
        relative=relative,
        grid=grid,
        key_mask=mask,
        query_mask=mask,
        is_causal=is_causal,
        backend=case.backend,
        num_prefix_tokens=first,
    )
    assert output.shape == (0, 3, num_tokens, 4)
    everything = [*inputs, *leaves.values()]
    gradients = torch.autograd.grad(output.sum(), everything, allow_unused=True)
    for tensor, gradient in zip(everything, gradients, strict=True):
        assert gradient is None or (gradient.shape == tensor.shape and not gradient.any())


@parametrize_by_kernel(SUPPORTED_CASES)
def test_attention_accepts_an_empty_batch(case: Case):
    attend(case, Grid((3, 5)), first=1, is_causal=False)


def test_positions_accept_an_empty_batch():
    for relative in ("t5", "window"):
        output = attention(
            *draw_inputs(6, batch=0), relative=relative, positions=torch.zeros(0, 6, 2)
        )
        assert output.shape == (0, 3, 6, 4), relative


@parametrize_by_kernel(CAUSAL_CASES)
def test_causal_attention_accepts_an_empty_batch(case: Case):
    attend(case, Grid(5), first=0, is_causal=True)
    if has_features(case.kernel) and case.relative in DECODABLE:
        state = None
        query, key, value = draw_inputs(1, batch=0)
        for _ in range(3):
            output, state = decode(
                query, key, value, state, kernel=case.kernel, relative=case.relative
            )
            assert output.shape == (0, 3, 1, 4)


def assert_finite_gradients_of_an_empty_batch(
    model: nn.Module, inputs: Tensor, *others: object, size: tuple[int, ...]
) -> None:
    """Check the output of an empty batch, and that the same parameters have zero gradients."""
    learnt = []
    for batch in (2, 0):
        model.zero_grad(set_to_none=True)
        some = inputs[:batch].clone().requires_grad_()
        output = model(
            some,
            *(
                argument[:batch] if isinstance(argument, Tensor) else argument
                for argument in others
            ),
        )
        assert output.shape == (batch, *size)
        output.sum().backward()
        assert some.grad is not None
        assert some.grad.shape == some.shape
        learnt.append(
            {name for name, parameter in model.named_parameters() if parameter.grad is not None}
        )
    assert learnt[0] == learnt[1]
    assert not any(
        parameter.grad.any() for parameter in model.parameters() if parameter.grad is not None
    )


@parametrize_by_kernel(PAIRS)
def test_layers_accept_an_empty_batch(pair: Case):
    tokens, mask = torch.randn(2, 15, 8), torch.ones(2, 15, dtype=torch.bool)
    for kind in (Attention, TransformerBlock):
        layer = kind(8, 2, kernel=pair.kernel, relative=pair.relative)
        assert_finite_gradients_of_an_empty_batch(layer, tokens, Grid((3, 5)), mask, size=(15, 8))


def test_layer_options_accept_an_empty_batch():
    grid = Grid((3, 5))
    every: list[dict[str, Any]] = [
        {"gate": True},
        {"value_convolution": 3},
        {"query_key": "centred"},
        {"values": "tokens"},
    ]
    for options in every:
        assert_finite_gradients_of_an_empty_batch(
            Attention(8, 2, **options), torch.randn(2, 15, 8), grid, size=(15, 8)
        )
    layer = Attention(8, 2, causal=True, num_axes=1)
    lengths = torch.zeros(0, dtype=torch.long)
    assert layer(torch.randn(0, 5, 8), Grid(5), lengths=lengths).shape == (0, 5, 8)
    token, state = layer.step(torch.randn(0, 8))
    assert layer.step(token, state)[0].shape == (0, 8)


def test_other_modules_accept_an_empty_batch():
    assert_finite_gradients_of_an_empty_batch(
        AttentionPool(8, 2), torch.randn(2, 5, 8), torch.ones(2, 5).bool(), size=(1, 8)
    )
    assert_finite_gradients_of_an_empty_batch(
        SinusoidalPositionEmbedding(8), torch.randn(2, 6, 8), Grid((2, 3)), size=(6, 8)
    )
    blocks = SpaceToDepth()
    assert blocks.inverse(blocks(torch.randn(0, 3, 4, 6))).shape == (0, 3, 4, 6)


@for_each(
    {
        f"{position}, {pool}": (position, pool)
        for position, pool in itertools.product(POSITIONS, POOLS)
    }
)
def test_performer_accepts_an_empty_batch(chosen: tuple[str, str]):
    position, pool = chosen
    kernel = (
        "squared_relu"
        if position not in RELATIVES or is_valid_pair("squared_relu", position)
        else "positive"
    )
    model = Performer(4, 1, 3, dim=8, depth=2, heads=2, position=position, pool=pool, kernel=kernel)
    assert_finite_gradients_of_an_empty_batch(model, torch.randn(2, 1, 4, 4), size=(3,))
