"""Initial values of learned kernels of distances and signed offsets."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from teka.models import Performer
from teka.nn import (
    Attention,
    LearnedFeatures,
    LearnedRelativeKernel,
    MultiheadAttention,
    PolyphaseDownsample,
    PolyphasePatchEmbedding,
    RandomFeatures,
    TransformerBlock,
)


def test_decay_is_initialized_as_alibi():
    decay, alibi = (
        LearnedRelativeKernel("decay", num_axes=2, heads=8),
        LearnedRelativeKernel("alibi", heads=8),
    )
    torch.testing.assert_close(decay().rate, alibi().slope[:, None].expand(8, 2))
    assert not list(alibi.parameters())
    assert "slope" in alibi.state_dict()


def test_power_of_kerple_is_below_2():
    kernel = LearnedRelativeKernel("kerple", num_axes=1, heads=3, form="power")
    with torch.no_grad():
        kernel.raw_bend.fill_(50.0)
    assert (kernel().bend <= 2).all()


def test_max_distance_of_shaw_and_frequencies_of_transformer_xl():
    assert LearnedRelativeKernel("shaw", num_axes=2, dim_head=5, max_distance=3)().max_distance == 3
    frequency = 8.0 ** (-torch.arange(4) / 2)  # the frequencies of rotation
    module = LearnedRelativeKernel(
        "transformer_xl", num_axes=2, heads=3, dim_head=5, frequency=frequency
    )
    assert torch.equal(module().frequency, frequency[:, None].expand(4, 2))
    layer = Attention(15, 3, kernel="softmax", relative=module)
    assert layer.relative is module


def test_transformer_xl_loads_old_state_dicts():
    module = LearnedRelativeKernel("transformer_xl", num_axes=2, heads=3, dim_head=5)
    state_dict = module.state_dict()
    state_dict["frequency"] = 2 * state_dict["frequency"][:, 0]
    expected = state_dict["frequency"][:, None].expand(4, 2)
    module.load_state_dict(state_dict)
    assert torch.equal(module().frequency, expected)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (
            lambda: LearnedRelativeKernel("window", num_axes=7, heads=1, max_distance=16),
            "num_axes, heads, max_distance must be",
        ),
        (
            lambda: LearnedRelativeKernel("window", num_axes=10**6, heads=1),
            r"num_axes must be .*got 1000000",
        ),
        (
            lambda: LearnedRelativeKernel("window", num_axes=2, heads=1, max_distance=10**5),
            "num_axes, heads, max_distance must be",
        ),
        (
            lambda: LearnedRelativeKernel("shaw", num_axes=2, dim_head=10**5, max_distance=10**5),
            "num_axes, dim_head, max_distance must be",
        ),
        (
            lambda: LearnedRelativeKernel("table", num_axes=2, heads=10**5, max_offset=10**5),
            "num_axes, heads, max_offset must be",
        ),
        (
            lambda: RandomFeatures("positive", 10**5, num_features=10**5),
            "num_features, dim must be",
        ),
        (
            lambda: RandomFeatures("positive", 8, num_features=10**8),
            r"num_features must be .*got 100000000",
        ),
        (lambda: LearnedFeatures("hedgehog", 10**5, 2), "dim, heads must be"),
        (
            lambda: LearnedRelativeKernel("generalized_quadratic", num_axes=2, heads=10**9),
            "num_axes, heads must be",
        ),
        (lambda: LearnedRelativeKernel("alibi", heads=10**9), r"heads must be .*got 1000000000"),
        (lambda: Attention(16, 2, context_dim=2**31 - 1), "context_dim, heads, dim_head must be"),
        (lambda: MultiheadAttention(10**6, 2), "embed_dim must be"),
        (lambda: MultiheadAttention(16, 2, kdim=10**9), "the larger of kdim and vdim must be"),
        (lambda: TransformerBlock(16, 2, mlp_ratio=1e8), "mlp_ratio must be"),
        (lambda: PolyphasePatchEmbedding(3, 10**6, 1024), "in_channels, dim, patch_size must be"),
        (lambda: PolyphaseDownsample(2, select="learned", channels=10**9), "channels must be"),
        (lambda: PolyphaseDownsample(2, blur=10**9 + 1), "blur must be"),
        (
            lambda: Performer((8, 8), 3, 2**31 - 1, dim=64, depth=2, heads=2),
            "num_classes, dim must be",
        ),
        (
            lambda: Performer((8, 8), 2**31 - 1, 10, dim=64, depth=2, heads=2),
            "in_channels, dim must be",
        ),
    ],
)
def test_too_large_sizes_are_errors_before_allocation(make: Callable[[], nn.Module], named: str):
    with pytest.raises(ValueError, match=named):
        make()
