"""Pruned layers: the outputs of the layer whose removed heads contribute zero, at a lower cost."""

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from reproduction.flops import make_flop_counter
from teka import Grid, functional
from teka.functional import KERNELS, RELATIVES, QuadraticBias
from teka.nn import (
    Attention,
    EmbeddedBiasTable,
    LearnedFeatures,
    LearnedRelativeKernel,
    prune_heads,
)
from teka.nn.relative import RelativeModule
from tests.contracts.cases import relative_error

GRID = Grid((3, 5))
DIM, HEADS, WIDTH = 8, 5, 4


def build(**options: Any) -> Attention:
    """Return a layer with random parameters, because initial ones are often equal in all heads."""
    torch.manual_seed(0)
    options = {"dim_head": WIDTH, **options}
    layer = Attention(DIM, HEADS, **options).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return layer


def draw_tokens(prefix: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, prefix + GRID.num_tokens, DIM, generator=generator).double()


def zero_heads(layer: Attention, heads: list[int]) -> Attention:
    """Return a copy of the layer whose output projection is zero for some heads."""
    silent = copy.deepcopy(layer)
    with torch.no_grad():
        silent.output.weight.unflatten(1, (layer.heads, -1))[:, heads] = 0
    return silent


def check_pruned_layer(layer: Attention, heads: list[int], **arguments: Any) -> Attention:
    pruned = prune_heads(layer, heads)
    tokens = draw_tokens(arguments.get("num_prefix_tokens", 0))
    change = relative_error(
        pruned(tokens, GRID, **arguments), zero_heads(layer, heads)(tokens, GRID, **arguments)
    )
    assert change < 1e-12, f"without heads {heads} of {layer}"
    assert pruned.heads == layer.heads - len(set(heads))
    return pruned


@pytest.mark.parametrize(
    "relative", [*(name for name in RELATIVES if name != "rotation_joint"), None]
)
def test_pruned_heads_contribute_zero_with_every_relative_kernel(relative):
    for values, heads in itertools.product(("projected", "tokens"), ([4, 1], [0, 2, 3, 4])):
        check_pruned_layer(build(relative=relative, values=values), heads)


def test_pruned_heads_contribute_zero_with_every_content_kernel():
    for kernel in KERNELS:
        check_pruned_layer(build(kernel=kernel, relative="quadratic"), [4, 1])


def test_pruned_heads_contribute_zero_with_the_joint_rotation():
    check_pruned_layer(build(kernel="positive", relative="rotation_joint"), [3, 0])


def test_pruned_heads_contribute_zero_with_every_option():
    for options in (
        {"gate": True, "value_convolution": 3},
        {"gate": True, "values": "tokens"},
        {"query_key": "normalized"},
        {"query_key": "centred", "relative": "quadratic", "position_heads": 2},
        {"query_key": "normalized", "relative": "clipped"},
        {"qkv_bias": False, "relative": "fourier"},
        {"kernel": "constant", "relative": "quadratic", "backend": "toeplitz"},
    ):
        check_pruned_layer(build(**options), [1, 4])


@pytest.mark.parametrize(
    ("kernel", "relative"),
    [("softmax", "quadratic"), ("hedgehog", "clipped"), ("constant", "quadratic")],
)
def test_position_heads_and_content_heads_keep_their_kind(relative, kernel):
    for heads in ([0, 1], [3], [0, 3], [0, 1, 2], [3, 4], [0, 1, 2, 4], [1, 2, 3, 4]):
        layer = build(kernel=kernel, relative=relative, position_heads=2, backend="auto")
        pruned = check_pruned_layer(layer, heads, num_prefix_tokens=1)
        by_position = sum(head not in heads for head in (3, 4))
        by_content = pruned.heads - by_position
        assert pruned.position_heads == (by_position if by_content else 0), heads
        assert (pruned.relative is None) == (by_position == 0), heads
        if not by_content:
            assert isinstance(pruned.kernel, functional.Constant)
            assert pruned.key is None


def test_the_backend_is_reset_without_position_heads():
    layer = build(kernel="softmax", relative="quadratic", position_heads=2, backend="toeplitz")
    assert check_pruned_layer(layer, [3, 4]).backend == "auto"


@pytest.mark.parametrize(
    "options",
    [
        {
            "relative": LearnedRelativeKernel("quadratic", num_axes=2, heads=HEADS),
            "kernel": "constant",
        },
        {
            "relative": EmbeddedBiasTable(2, HEADS, max_offset=4, embedding_dim=7),
            "kernel": "constant",
        },
        {"relative": None, "kernel": LearnedFeatures("hedgehog", WIDTH, HEADS)},
        {
            "relative": LearnedRelativeKernel("clipped", dim_head=WIDTH),
            "kernel": "squared_relu",
            "position_heads": 3,
        },
    ],
    ids=["quadratic", "embedded table", "learned features", "clipped"],
)
def test_custom_modules_are_pruned_in_the_copy_only(options):
    layer = build(**options)
    before = copy.deepcopy(layer.state_dict())
    check_pruned_layer(layer, [0, 3])
    for name, value in layer.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


def test_a_functional_kernel_keeps_the_parameters_of_the_kept_heads():
    generator = torch.Generator().manual_seed(3)
    maps = [torch.randn(HEADS, 3, WIDTH, generator=generator).double() for _ in range(2)]
    biases = [torch.randn(HEADS, 3, generator=generator).double() for _ in range(2)]
    layer = build(kernel=functional.Hedgehog(*maps, *biases), relative=None)
    assert isinstance(check_pruned_layer(layer, [0, 3]).kernel, functional.Hedgehog)
    shared = functional.Hedgehog(*(parameter[:1] for parameter in (*maps, *biases)))
    check_pruned_layer(build(kernel=shared, relative=None), [0, 3])


@pytest.mark.parametrize(
    "options",
    [{}, {"kernel": "constant", "relative": "quadratic", "values": "tokens", "backend": "dense"}],
    ids=str,
)
def test_parameters_and_operations_are_proportional_to_the_heads(options):
    layer = build(**options)
    pruned = prune_heads(layer, [0, 2, 3])
    counts = []
    for module in (layer, pruned):
        with torch.no_grad(), make_flop_counter() as counter:
            module(draw_tokens(), GRID)
        without_bias = sum(parameter.numel() for parameter in module.parameters()) - DIM
        counts.append((counter.get_total_flops(), without_bias))
    # Two of five heads are left, and the bias of the output.
    assert [5 * after for after in counts[1]] == [2 * before for before in counts[0]]


def test_a_pruned_layer_has_the_shapes_of_a_smaller_layer():
    options = {"kernel": "hedgehog", "relative": "fourier", "gate": True, "query_key": "normalized"}
    layer = build(**options)
    pruned = prune_heads(layer, [0, 2])
    smaller = Attention(DIM, HEADS - 2, dim_head=WIDTH, **options)
    assert repr(smaller.double()) == repr(pruned)
    smaller.load_state_dict(pruned.state_dict())
    once = prune_heads(layer, [0, 2, 4])
    assert (
        relative_error(prune_heads(pruned, [2])(draw_tokens(), GRID), once(draw_tokens(), GRID))
        == 0
    )


def test_frozen_parameters_stay_frozen():
    layer = build(relative="quadratic", kernel="constant")
    layer.output.weight.requires_grad_(False)
    pruned = prune_heads(layer, [1])
    assert not pruned.output.weight.requires_grad
    pruned(draw_tokens(), GRID).square().sum().backward()
    assert pruned.output.weight.grad is None
    assert all(
        parameter.grad is not None
        for name, parameter in pruned.named_parameters()
        if name != "output.weight"
    )


def test_pruning_no_heads_copies_the_layer():
    layer = build()
    copied = prune_heads(layer, [])
    assert repr(copied) == repr(layer)
    for name, value in copied.state_dict().items():
        torch.testing.assert_close(value, layer.state_dict()[name], rtol=0, atol=0)


def test_bad_heads_are_errors():
    for heads in ([5], [-1], [0, True]):
        with pytest.raises(ValueError, match=r"heads must be integers from 0 to 4"):
            prune_heads(build(), heads)
    with pytest.raises(ValueError, match="fewer than all 5 heads"):
        prune_heads(build(), range(5))


def test_relative_kernels_without_head_parameters_are_errors():
    class Twisted(RelativeModule):
        kernel_class = QuadraticBias

        def __init__(self, heads: int) -> None:
            super().__init__()
            self.center = nn.Parameter(torch.zeros(heads, 2))

        def forward(self) -> QuadraticBias:
            return QuadraticBias(self.center, torch.ones(len(self.center)))

    layer = build(relative=Twisted(HEADS), kernel="constant")
    with pytest.raises(ValueError, match=r"relative kernel must be .*got 'Twisted'"):
        prune_heads(layer, [0])
    mixed = build(relative=Twisted(2), kernel="softmax", position_heads=2)
    assert prune_heads(mixed, [0]).heads == 4
