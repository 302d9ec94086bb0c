"""The options of attention: declared once, the same keywords wherever they are taken."""

import inspect
from dataclasses import fields
from typing import Any, get_type_hints

import pytest
import torch

from teka import Grid
from teka.models import Performer
from teka.nn import AbsolutePosition, Attention, AttentionOptions, AttentionPool, TransformerBlock
from teka.nn.local_conv import ValueConvolution
from teka.nn.options import AttentionKeywords, BlockKeywords

DECLARED = {one.name: one.default for one in fields(AttentionOptions)}


def test_keywords_equal_the_options():
    assert get_type_hints(AttentionKeywords) == get_type_hints(AttentionOptions)


@pytest.mark.parametrize(
    ("kind", "keywords", "own"),
    [
        (Attention, AttentionKeywords, {"dim", "heads"}),
        (TransformerBlock, BlockKeywords, {"dim", "heads", "mlp_ratio", "window_reach"}),
    ],
)
def test_signatures_show_options_with_defaults(kind: type, keywords: Any, own: set[str]):
    shown = inspect.signature(kind).parameters
    names = get_type_hints(keywords)
    assert {name: shown[name].default for name in names} == {name: DECLARED[name] for name in names}
    assert shown.keys() == own | names.keys()


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda **options: Attention(8, 2, **options), "kernl"),
        (lambda **options: TransformerBlock(8, 2, **options), "context_dim"),
    ],
)
def test_unknown_layer_option_lists_the_known_options(make: Any, name: str):
    with pytest.raises(TypeError, match=f"got an unknown keyword {name!r}; it takes .*dim"):
        make(**{name: 1})


def test_unknown_model_option_is_an_error():
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'causal'"):
        Performer(8, 1, 2, dim=8, depth=2, heads=2, causal=True)


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
        (AbsolutePosition(8), {}),
    ],
    ids=lambda one: type(one).__name__,
)
def test_layer_declares_its_equivariance(layer: Any, expected: dict[str, str]):
    assert layer.equivariance == expected
