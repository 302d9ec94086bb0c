"""Options of attention layers, which layers and models that contain attention accept too."""

import re
from dataclasses import fields
from typing import Any

import pytest
import torch

from teka import Grid
from teka.models import Performer
from teka.nn import (
    Attention,
    AttentionHeads,
    AttentionOptions,
    AttentionPool,
    SinusoidalPositionEmbedding,
    TransformerBlock,
)
from teka.nn.local_conv import ValueConvolution


def test_the_docstring_of_attention_describes_every_option():
    assert Attention.__doc__ is not None
    arguments = Attention.__doc__.partition("Args:")[2].partition("Raises:")[0]
    described = re.findall(r"^        (\w+): ", arguments, re.MULTILINE)
    names = [field.name for field in fields(AttentionOptions)]
    assert described == ["dim", "heads", "options", *names]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda **options: Attention(8, 2, **options), "kernl"),
        (lambda **options: TransformerBlock(8, 2, **options), "context_dim"),
        (lambda **options: AttentionHeads(8, 2, **options), "dropout"),
        (lambda **options: Performer(8, 1, 2, dim=8, depth=2, heads=2, **options), "causal"),
    ],
)
def test_unknown_option_is_an_error(make: Any, name: str):
    with pytest.raises(TypeError, match=rf"got an unexpected keyword argument {name!r}"):
        make(**{name: 1})


def test_options_of_another_layer_are_an_error():
    with pytest.raises(ValueError, match=r"options\.values must be 'projected'.*got 'tokens'"):
        TransformerBlock(8, 2, AttentionOptions(values="tokens"))


def test_keywords_replace_the_values_of_an_options_object():
    torch.manual_seed(0)
    layer = Attention(8, 2, AttentionOptions(kernel="relu", gate=True), kernel="elu")
    torch.manual_seed(0)
    assert repr(layer) == repr(Attention(8, 2, kernel="elu", gate=True))


def test_block_passes_all_options_to_its_attention():
    torch.manual_seed(0)
    options: dict[str, Any] = {
        "dim_head": 3,
        "kernel": "relu",
        "relative": "fourier",
        "num_waves": 2,
        "gate": True,
    }
    block = TransformerBlock(8, 2, dropout=0.25, **options)
    torch.manual_seed(0)
    assert repr(block.attention) == repr(Attention(8, 2, dropout=0.25, **options))
    assert [block.mlp[2].p, block.mlp[4].p] == [0.25, 0.25]
    assert block(torch.randn(2, 15, 8), Grid((3, 5))).shape == (2, 15, 8)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (Attention(8, 2), {"shift": "exact"}),
        (
            Attention(8, 2, kernel="positive", relative="rotation_joint"),
            {"shift": "in expectation"},
        ),
        (Attention(8, 2, relative=None), {"shift": "exact", "permutation": "exact"}),
        (Attention(8, 2, relative=None, causal=True), {"shift": "exact"}),
        (Attention(8, 2, relative=None, value_convolution=3), {"shift": "exact"}),
        (AttentionPool(8, 2), {"permutation": "exact"}),
        (ValueConvolution(2, 3, 3, 2), {"shift": "exact"}),
        (SinusoidalPositionEmbedding(8), {}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_layer_declares_its_equivariance(layer: Any, expected: dict[str, str]):
    assert layer.equivariance == expected
