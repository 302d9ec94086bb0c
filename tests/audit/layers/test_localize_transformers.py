"""Tests with tiny random transformers models whose first layers that break are known."""

import torch
from transformers import (
    ConvNextConfig,
    ConvNextForImageClassification,
    ResNetConfig,
    ResNetForImageClassification,
    SwinConfig,
    SwinForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

from teka.audit import axis_shifts
from teka.audit.layers.localize import locate_layers
from teka.audit.movement import Movement
from tests.audit.layers.findings import exact_step, find

CIRCULAR = Movement("circular")


def locate(make, config, max_shift=8):
    torch.manual_seed(4)
    model = make(config).eval()
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    return locate_layers(model, images, axis_shifts(max_shift), CIRCULAR)


def test_vit_breaks_at_its_position_and_patch_embeddings():
    found = locate(
        ViTForImageClassification,
        ViTConfig(
            image_size=32,
            patch_size=4,
            hidden_size=12,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
        ),
    )
    assert found.first_break == "vit.embeddings"
    assert found.absolute_embeddings == ("vit.embeddings.position_embeddings",)
    assert found.largest_increases(1)[0].name == "vit.embeddings"
    aliasing = found.breaks["aliasing"]
    assert aliasing.name == "vit.embeddings.patch_embeddings.projection"
    patches, tokens = find(found, aliasing.name), find(found, "vit.embeddings")
    assert (patches.stride, exact_step(found, patches)) == ((4, 4), 4)
    assert (tokens.layout, tokens.grid, tokens.prefix_tokens) == ("tokens", (8, 8), 1)
    for shift, error in zip(found.shifts, patches.errors, strict=True):
        assert error is not None
        assert (error > 0.1) == (sum(shift) % 4 != 0)


def test_vit_without_positions_breaks_only_at_its_patch_embedding():
    torch.manual_seed(4)
    config = ViTConfig(
        image_size=16,
        patch_size=4,
        hidden_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    model = ViTForImageClassification(config).eval()
    torch.nn.init.zeros_(model.vit.embeddings.position_embeddings)
    found = locate_layers(model, torch.rand(3, 3, 16, 16), axis_shifts(8), CIRCULAR)
    assert set(found.breaks) == {"aliasing"}
    assert found.absolute_embeddings == ("vit.embeddings.position_embeddings",)
    assert exact_step(found, found.findings[-1]) == 4


def test_swin_breaks_at_its_first_attention_window():
    config = SwinConfig(
        image_size=32, patch_size=2, embed_dim=8, depths=[2, 1], num_heads=[2, 2], window_size=4
    )
    found = locate(SwinForImageClassification, config)
    assert found.first_break == "swin.encoder.layers.0.blocks.0"
    assert found.absolute_embeddings == ()
    assert found.breaks["interior"].between is not None
    assert found.breaks["aliasing"].name == "swin.embeddings.patch_embeddings.projection"
    block, merged = (
        find(found, "swin.encoder.layers.0.blocks.0"),
        find(found, "swin.encoder.layers.0.downsample.norm"),
    )
    assert block.interior_error is not None
    assert exact_step(found, block) == 8
    assert (merged.grid, merged.stride) == ((8, 8), (4, 4))
    assert all(
        "batch" in reason for name, reason in found.skipped.items() if name.endswith("_proj")
    )


def test_resnet_breaks_at_its_first_convolution():
    config = ResNetConfig(embedding_size=4, hidden_sizes=[4, 6], depths=[1, 1], layer_type="basic")
    found = locate(ResNetForImageClassification, config)
    first = "resnet.embedder.embedder.convolution"
    assert found.first_break is None
    assert {kind: one.name for kind, one in found.breaks.items()} == {
        "edge": first,
        "aliasing": first,
    }
    strided, pooled = find(found, first), find(found, "resnet.embedder.pooler")
    assert (strided.stride, exact_step(found, strided), pooled.stride) == ((2, 2), 2, (4, 4))
    for shift, error in zip(found.shifts, strided.errors, strict=True):
        assert error is not None
        assert (error > 0.1) if sum(shift) % 2 else (error < 1e-6)


def test_convnext_breaks_at_its_patches_and_its_padding():
    config = ConvNextConfig(hidden_sizes=[6, 8], depths=[1, 1], num_stages=2, patch_size=4)
    found = locate(ConvNextForImageClassification, config)
    assert found.first_break is None
    assert found.breaks["aliasing"].name == "convnext.embeddings.patch_embeddings"
    assert found.breaks["edge"].name == "convnext.encoder.stages.0.layers.0.dwconv"
    block = find(found, "convnext.encoder.stages.0.layers.0.pwconv1")
    assert block.layout == "channels-last map"
    down = find(found, "convnext.encoder.stages.1.downsampling_layer.1")
    assert down.stride == (8, 8)
