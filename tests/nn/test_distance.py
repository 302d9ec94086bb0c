"""Learned kernels of distance and of signed offsets: what they begin as."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from teka.models import Performer
from teka.nn import (
    Alibi,
    Attention,
    Decay,
    GeneralizedQuadratic,
    Kerple,
    LearnedFeatures,
    MultiheadAttention,
    PolyphaseDownsample,
    PolyphasePatchEmbedding,
    RandomFeatures,
    Shaw,
    Table,
    TransformerBlock,
    TransformerXL,
    Window,
)


def test_decay_begins_as_alibi_which_learns_nothing():
    decay, alibi = Decay(2, 8), Alibi(8)
    torch.testing.assert_close(decay().rate, alibi().slope[:, None].expand(8, 2))
    assert not list(alibi.parameters())
    assert "slope" in alibi.state_dict()


def test_the_power_of_kerple_stays_below_2():
    kernel = Kerple(1, 3, form="power")
    with torch.no_grad():
        kernel.raw_bend.fill_(50.0)
    assert (kernel().bend <= 2).all()


def test_shaw_takes_the_distance_and_transformer_xl_the_frequencies_that_are_asked_for():
    assert Shaw(2, 5, max_distance=3)().max_distance == 3
    frequency = 8.0 ** (-torch.arange(4) / 2)  # of strategy 1
    module = TransformerXL(2, 3, 5, frequency=frequency)
    assert torch.equal(module().frequency, frequency[:, None].expand(4, 2))
    layer = Attention(15, 3, kernel="softmax", relative=module)
    assert layer.relative is module


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Window(7, 1, max_distance=16), "num_axes, heads, max_distance is"),
        (lambda: Window(10**6, 1), "num_axes is 1000000"),
        (lambda: Window(2, 1, max_distance=10**5), "num_axes, heads, max_distance is"),
        (lambda: Shaw(2, 10**5, max_distance=10**5), "num_axes, dim_head, max_distance is"),
        (lambda: Table(2, 10**5, max_offset=10**5), "num_axes, heads, max_offset is"),
        (lambda: RandomFeatures("positive", 10**5, num_features=10**5), "num_features, dim is"),
        (lambda: RandomFeatures("positive", 8, num_features=10**8), "num_features is 100000000"),
        (lambda: LearnedFeatures("hedgehog", 10**5, 2), "dim, heads is"),
        (lambda: GeneralizedQuadratic(2, 10**9), "num_axes, heads is"),
        (lambda: Alibi(10**9), "heads is 1000000000"),
        (lambda: Attention(16, 2, context_dim=2**31 - 1), "context_dim, heads, dim_head is"),
        (lambda: MultiheadAttention(10**6, 2), "embed_dim is"),
        (lambda: MultiheadAttention(16, 2, kdim=10**9), "the larger of kdim and vdim is"),
        (lambda: TransformerBlock(16, 2, mlp_ratio=1e8), "mlp_ratio is"),
        (lambda: PolyphasePatchEmbedding(3, 10**6, 1024), "in_channels, dim, patch_size is"),
        (lambda: PolyphaseDownsample(2, select="learned", channels=10**9), "channels is"),
        (lambda: PolyphaseDownsample(2, blur=10**9 + 1), "blur is"),
        (lambda: Performer((8, 8), 3, 2**31 - 1, dim=64, depth=2, heads=2), "num_classes, dim is"),
        (lambda: Performer((8, 8), 2**31 - 1, 10, dim=64, depth=2, heads=2), "in_channels, dim is"),
    ],
)
def test_sizes_of_a_tensor_that_is_too_large_are_refused_before_it_is_made(
    make: Callable[[], nn.Module], named: str
):
    with pytest.raises(ValueError, match=named):
        make()
