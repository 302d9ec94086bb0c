"""Replacement of attention in transformers models, which are built from tiny random configs."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")

from teka.convert import replace_attention  # noqa: E402
from teka.convert import replacement as reasons  # noqa: E402

TEXT = {"vocab_size": 100, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
PATCHES = {**SIZES, "image_size": 32, "patch_size": 8}
STAGES = {
    "hidden_sizes": [8] * 4,
    "depths": [1] * 4,
    "num_attention_heads": [1] * 4,
    "decoder_hidden_size": 8,
}
WINDOWS = {
    "image_size": 32,
    "patch_size": 4,
    "embed_dim": 8,
    "depths": [1, 1],
    "num_heads": [2, 2],
    "window_size": 4,
}
CODER = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
AUDIO = {
    "max_source_positions": 10,
    "max_target_positions": 20,
    "num_mel_bins": 8,
    "decoder_start_token_id": 1,
}
FRAMES = {"num_frames": 4, "tubelet_size": 2}
DINO = {key: value for key, value in PATCHES.items() if key != "intermediate_size"}
CONFIGS: dict[str, dict[str, Any]] = {
    "Beit": PATCHES,
    "Bert": {**SIZES, **TEXT},
    "CLIPVision": PATCHES,
    "DeiT": PATCHES,
    "Dinov2": DINO,
    "Dinov2WithRegisters": {**DINO, "num_register_tokens": 3},
    "GPT2": {
        "vocab_size": 100,
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 2,
        "bos_token_id": 0,
        "eos_token_id": 1,
    },
    "IJepa": PATCHES,
    "Llama": {**SIZES, **TEXT, "num_key_value_heads": 1},
    "Mistral": {**SIZES, **TEXT, "num_key_value_heads": 1, "sliding_window": 4},
    "Segformer": STAGES,
    "SiglipVision": PATCHES,
    "Swin": WINDOWS,
    "T5": {
        "vocab_size": 100,
        "d_model": 16,
        "d_kv": 8,
        "num_layers": 1,
        "num_heads": 2,
        "d_ff": 32,
    },
    "ViT": PATCHES,
    "ViTMAE": PATCHES,
    "VideoMAE": {**PATCHES, **FRAMES},
    "Whisper": {**TEXT, **CODER, **HEADS, **AUDIO},
    "Yolos": {**PATCHES, "image_size": [32, 32], "num_detection_tokens": 5},
}


def make_model(kind: str, **changes: object) -> nn.Module:
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    config = getattr(transformers, f"{kind}Config")(**{**CONFIGS[kind], **changes})
    model = getattr(transformers, f"{kind}Model")(config).double().eval()
    # Larger weights, so that attention depends more on the positions.
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.mul_(4)
    return model


def make_inputs(model: Any) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(5, 90, (2, 7), generator=generator)
    if model.main_input_name == "pixel_values":
        frames = (4,) if model.config.model_type == "videomae" else ()
        return {
            "pixel_values": torch.rand(
                2, *frames, 3, 32, 32, generator=generator, dtype=torch.float64
            )
        }
    inputs = {"input_ids": words}
    if model.main_input_name == "input_features":
        inputs = {"input_features": torch.randn(2, 8, 20, generator=generator, dtype=torch.float64)}
    return (
        {**inputs, "decoder_input_ids": words[:, :5]} if model.config.is_encoder_decoder else inputs
    )


@torch.no_grad()
def last_hidden_state(model: nn.Module, inputs: dict[str, Tensor] | None = None) -> Tensor:
    torch.manual_seed(2)  # the patches that ViTMAE masks are random
    return model(**(inputs or make_inputs(model))).last_hidden_state


@pytest.mark.parametrize("kind", sorted(CONFIGS.keys() - {"Mistral", "Swin", "T5"}))
def test_softmax_keeps_the_outputs_to_rounding(kind: str):
    model = make_model(kind)
    expected = last_hidden_state(model)
    report = replace_attention(model, kernel="softmax", relative=None)
    assert report.replaced
    assert set(report.left.values()) <= {reasons.OTHER_TOKENS}
    torch.testing.assert_close(last_hidden_state(model), expected, rtol=1e-10, atol=1e-10)


LEFT: list[tuple[str, dict, dict, str]] = [
    ("Beit", {"use_relative_position_bias": True}, {"relative": None}, reasons.BIASED),
    ("Mistral", {}, {"relative": None}, reasons.WINDOWED),
    ("Swin", {}, {"relative": None}, reasons.BIASED),
    ("T5", {}, {"relative": None}, reasons.BIASED),
    ("Segformer", {}, {}, reasons.COARSER_KEYS),
    ("Segformer", {"sr_ratios": [1] * 4}, {}, reasons.UNPLACED),
    ("ViTMAE", {}, {}, reasons.SUBSET),
    ("Yolos", {}, {}, reasons.UNPLACED),
]


@pytest.mark.parametrize(("kind", "changes", "options", "reason"), LEFT)
def test_unsupported_attention_is_left_with_the_reason(kind, changes, options, reason):
    model = make_model(kind, **changes)
    expected, state = last_hidden_state(model), set(model.state_dict())
    with pytest.warns(UserWarning, match="no layer was replaced"):
        report = replace_attention(model, **options)
    assert not report.replaced
    assert reason in report.left.values()
    assert set(model.state_dict()) == state
    assert torch.equal(last_hidden_state(model), expected)


def reflect_patches(images: Tensor, patch_size: int = 8) -> Tensor:
    """Reverse the order of the patches along each row, but not the pixels within a patch."""
    return images.unflatten(-1, (-1, patch_size)).flip(-2).flatten(-2)


PLACED = {
    "Beit": 1,
    "CLIPVision": 1,
    "DeiT": 2,
    "Dinov2": 1,
    "Dinov2WithRegisters": 4,
    "IJepa": 0,
    "SiglipVision": 0,
}
PLACED |= {"ViT": 1, "VideoMAE": 0}


@pytest.mark.parametrize("kind", PLACED)
def test_patches_have_their_positions_after_the_class_tokens(kind: str):
    # A kernel of distances is equivariant to reflections of the grid only if the tokens have
    # their true positions.
    model = make_model(kind)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if "position_embedding" in name and tensor.is_floating_point():
            tensor.data.zero_()
    embeddings: Any = getattr(model, "embeddings", None)
    if kind == "VideoMAE":
        embeddings.position_embeddings = torch.zeros_like(embeddings.position_embeddings)
    report = replace_attention(model, kernel="softmax", relative="decay")
    assert len(report.replaced) == 2
    inputs = make_inputs(model)
    patches = last_hidden_state(model, inputs)[:, PLACED[kind] :]
    found = last_hidden_state(model, {"pixel_values": reflect_patches(inputs["pixel_values"])})[
        :, PLACED[kind] :
    ]
    expected = patches.unflatten(1, (-1, 4)).flip(2).flatten(1, 2)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_save_pretrained_of_a_replaced_model_is_an_error(tmp_path):
    classes = transformers.ViTForImageClassification
    model = classes(transformers.ViTConfig(**PATCHES, num_labels=3)).eval()
    other = copy.deepcopy(model)
    assert replace_attention(model).replaced
    expected = model(torch.ones(1, 3, 32, 32)).logits
    for part in (model, model.vit, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with pytest.raises(
            ValueError, match=r"save_pretrained cannot save replaced attention.*state_dict"
        ):
            part.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="save_pretrained cannot save replaced attention"):
        model.push_to_hub("owner/name")
    assert not list(tmp_path.iterdir())
    with pytest.raises(RuntimeError, match="Unexpected key"):
        other.load_state_dict(model.state_dict())
    replace_attention(other)
    other.load_state_dict(model.state_dict())
    for same in (other, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(same(torch.ones(1, 3, 32, 32)).logits, expected)


def test_only_submodels_with_replaced_layers_change():
    # The decoder's sliding windows are not replaced, and its mask is unchanged.
    text = transformers.MistralConfig(**CONFIGS["Mistral"])
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**PATCHES), text_config=text, image_token_id=3
    )
    torch.manual_seed(0)
    model = transformers.LlavaModel(config).double().eval()
    words = torch.tensor([[5, *[3] * 16, 7, 8]])
    inputs = {"input_ids": words, "pixel_values": torch.rand(1, 3, 32, 32, dtype=torch.float64)}
    expected = last_hidden_state(model, inputs)
    report = replace_attention(model, kernel="softmax", relative=None)
    assert len(report.replaced) == 2
    assert set(report.left.values()) == {reasons.WINDOWED}
    torch.testing.assert_close(last_hidden_state(model, inputs), expected, rtol=1e-10, atol=1e-10)


def test_transformers_model_within_another_module_is_replaced():
    model = nn.Sequential(make_model("ViT"))
    vit = model[0]
    expected = last_hidden_state(vit)
    assert next(
        iter(replace_attention(model, kernel="softmax", relative=None).replaced)
    ).startswith("0.")
    torch.testing.assert_close(last_hidden_state(vit), expected, rtol=1e-10, atol=1e-10)
