"""The integration of teka into timm."""

# pyright: reportMissingImports=false
import copy
import doctest
from typing import Any

import pytest
import timm
import torch
from timm.data import resolve_model_data_config

from teka import Grid
from teka.convert import replace_attention
from teka.integrations import timm as integration
from teka.integrations.timm import register

register()
IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def make(name: str, **options: Any) -> Any:
    torch.manual_seed(0)
    return timm.create_model(name, img_size=64, depth=2, **options).eval()


def test_models_are_registered_once(recwarn: pytest.WarningsRecorder):
    register()
    assert len(timm.list_models("teka_*")) == 6
    assert not recwarn.list


@pytest.mark.parametrize("name", ["teka_tiny_patch16_224", "teka_tiny_polyphase16_224"])
def test_models_have_the_interface_of_timm(name: str):
    model = make(name, num_classes=7)
    assert model(IMAGES).shape == (2, 7)
    assert torch.equal(model.forward_head(model.forward_features(IMAGES)), model(IMAGES))
    model.reset_classifier(0)
    assert model(IMAGES).shape == (2, model.num_features) == (2, 192)
    model.reset_classifier(5, "")
    assert (
        model(IMAGES).shape == (2, 16, 5) == make(name, num_classes=5, global_pool="")(IMAGES).shape
    )
    with pytest.raises(ValueError, match=r"global_pool must be 'avg', '' or None.*got 'token'"):
        model.reset_classifier(5, "token")
    assert resolve_model_data_config(model)["mean"] == (0.485, 0.456, 0.406)
    features = make(name, features_only=True, in_chans=1, out_indices=(0, 1))
    assert [output.shape for output in features(IMAGES[:, :1])] == [(2, 192, 4, 4)] * 2
    assert features.feature_info.channels() == [192, 192]


def test_polyphase_model_is_invariant_to_circular_shifts():
    model = make("teka_tiny_polyphase16_224").double()
    images = IMAGES.double()
    change = model(images.roll((3, 5), (2, 3))) - model(images)
    assert change.abs().max() <= 1e-10 * model(images).abs().max()


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224"])
def test_replacement_with_softmax_keeps_the_outputs_of_a_timm_model(name: str):
    model = make(name).double()
    before, images = copy.deepcopy(model), IMAGES.double()
    report = replace_attention(model, kernel="softmax", relative=None)
    assert list(report.replaced) == ["blocks.0.attn", "blocks.1.attn"]
    torch.testing.assert_close(model(images), before(images), rtol=1e-10, atol=1e-10)
    learns = copy.deepcopy(before)
    replace_attention(learns)
    heads = learns.blocks[0].attn.heads
    assert (heads.grid, heads.num_prefix_tokens) == (Grid((4, 4)), model.num_prefix_tokens)
    learns(images).sum().backward()
    assert all(parameter.grad is not None for parameter in learns.parameters())


def test_attention_with_its_own_rotary_embedding_is_an_error():
    with pytest.raises(
        ValueError, match=r"model must be a model with supported attention, got 'Eva'"
    ):
        replace_attention(timm.create_model("vit_small_patch16_dinov3", depth=1))


def test_docstring_example():
    result = doctest.testmod(integration)
    assert result.attempted
    assert not result.failed
