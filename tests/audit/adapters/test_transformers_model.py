import json
import shutil
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from teka.audit import AuditSettings, audit
from teka.audit.adapters import LoadOptions, load
from teka.audit.adapters.transformers_model import (
    load_preprocessing,
    load_transformers,
    preprocessing_from_processor,
)
from teka.data import Normalize
from tests.audit.adapters.tiny_vit import CLASSES, quiet


def test_logits_equal_those_of_transformers(vit_folder):
    subject = load_transformers(str(vit_folder))
    assert (subject.input_size, subject.in_channels, subject.num_classes) == ((12, 12), 1, 5)
    assert subject.class_names == CLASSES
    assert subject.note == ""
    levels = np.random.default_rng(0).integers(0, 256, (12, 12), dtype=np.uint8)
    with quiet():
        processor = transformers.AutoImageProcessor.from_pretrained(vit_folder)
        model = transformers.AutoModelForImageClassification.from_pretrained(vit_folder)
    with torch.inference_mode():
        expected = model(
            **processor(levels[..., None], input_data_format="channels_last", return_tensors="pt")
        ).logits
        came = subject.function(torch.from_numpy(levels)[None, None].float() / 255)
    torch.testing.assert_close(came, expected, atol=1e-6, rtol=1e-5)
    assert subject.module is not None
    assert not subject.module.training


def test_pickled_weights_are_an_error(vit_folder, tmp_path):
    folder = tmp_path / "pickled"
    shutil.copytree(vit_folder, folder)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="safetensors") as error:
        load_transformers(str(folder))
    assert "\n" not in str(error.value)


def test_missing_weights_are_an_error(vit_folder, tmp_path):
    folder = tmp_path / "headless"
    shutil.copytree(vit_folder, folder)
    weights = load_file(folder / "model.safetensors")
    del weights["classifier.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"classifier\.weight would be left at random"):
        load_transformers(str(folder))


def test_truncated_weights_are_an_error(vit_folder, tmp_path):
    folder = tmp_path / "cut"
    shutil.copytree(vit_folder, folder)
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="with safetensors weights"):
        load_transformers(str(folder))


def test_code_of_a_repository_is_not_run(vit_folder, tmp_path):
    folder = tmp_path / "own"
    shutil.copytree(vit_folder, folder)
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "of-their-own"
    config["auto_map"] = {
        "AutoConfig": "own.Config",
        "AutoModelForImageClassification": "own.Model",
    }
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="a vision model"):
        load_transformers(str(folder))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("load_options", [LoadOptions(), LoadOptions(weights="random")])
def test_attention_kernel_of_the_hub_is_an_error(vit_folder, tmp_path, load_options):
    folder = tmp_path / "kernel"
    shutil.copytree(vit_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**config, "attn_implementation": "owner/kernel"})
    )
    with pytest.raises(
        ValueError, match=r"attn_implementation must be one that comes with.*got 'owner/kernel'"
    ):
        load_transformers(str(folder), load_options)


def test_bfloat16_weights_are_converted_to_float32(vit_folder, tmp_path):
    folder = tmp_path / "half"
    shutil.copytree(vit_folder, folder)
    weights_in_bfloat16 = {
        name: one.to(torch.bfloat16)
        for name, one in load_file(folder / "model.safetensors").items()
    }
    save_file(weights_in_bfloat16, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    module = load_transformers(str(folder)).module
    assert module is not None
    assert {one.dtype for one in module.parameters()} == {torch.float32}


def test_preprocessing_without_an_image_processor_is_undeclared(vit_folder, tmp_path):
    folder = tmp_path / "bare"
    shutil.copytree(vit_folder, folder)
    (folder / "preprocessor_config.json").unlink()
    subject = load_transformers(str(folder))
    assert subject.input_size == (12, 12)
    assert subject.transform.normalization is None
    assert not subject.declares_preprocessing


def test_image_processor_with_an_unknown_transform_is_an_error(vit_folder, tmp_path):
    folder = tmp_path / "poolformer"
    shutil.copytree(vit_folder, folder)
    with quiet():
        transformers.PoolFormerImageProcessor(size={"shortest_edge": 12}).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_channels": 3}))
    weights = load_file(folder / "model.safetensors")
    name = "vit.embeddings.patch_embeddings.projection.weight"
    weights[name] = weights[name].repeat(1, 3, 1, 1).contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"with a known transform.*PoolFormer"):
        load_transformers(str(folder))


def test_convolutional_model_accepts_another_input_size(tmp_path):
    torch.manual_seed(0)
    config = transformers.ResNetConfig(
        num_channels=3,
        embedding_size=4,
        hidden_sizes=[4, 8],
        depths=[1, 1],
        layer_type="basic",
        id2label=dict(enumerate("xyz")),
    )
    with quiet():
        transformers.ResNetForImageClassification(config).save_pretrained(tmp_path)
        transformers.ConvNextImageProcessor(size={"shortest_edge": 32}).save_pretrained(tmp_path)
    assert load_transformers(str(tmp_path)).input_size == (32, 32)
    subject = load_transformers(str(tmp_path), LoadOptions(input_size=(24, 20)))
    assert subject.input_size == (24, 20)
    assert subject.class_names == ("x", "y", "z")
    resized = subject.transform.resize_images(torch.rand(1, 1, 17, 19))
    output_of_model = subject.function(resized)
    assert isinstance(output_of_model, torch.Tensor)
    assert tuple(output_of_model.shape) == (1, 3)


def test_unreachable_model_id_is_an_error_of_one_line(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="nobody/nothing") as error:
        load_transformers("nobody/nothing")
    assert "\n" not in str(error.value)


PROCESSORS = {
    "vit": lambda: transformers.ViTImageProcessor(size={"height": 23, "width": 19}),
    "vit without rescaling": lambda: transformers.ViTImageProcessor(
        do_rescale=False, size={"height": 9, "width": 9}
    ),
    "vit without normalisation": lambda: transformers.ViTImageProcessor(do_normalize=False),
    "vit without resizing": lambda: transformers.ViTImageProcessor(do_resize=False),
    "vit nearest": lambda: transformers.ViTImageProcessor(
        resample=0, size={"height": 23, "width": 19}
    ),
    "clip": lambda: transformers.CLIPImageProcessor(
        size={"shortest_edge": 31}, crop_size={"height": 17, "width": 23}
    ),
    "clip crop beyond the edge": lambda: transformers.CLIPImageProcessor(
        size={"shortest_edge": 31}, crop_size={"height": 40, "width": 23}
    ),
    "convnext cropped": lambda: transformers.ConvNextImageProcessor(size={"shortest_edge": 32}),
    "convnext warped": lambda: transformers.ConvNextImageProcessor(size={"shortest_edge": 384}),
    "levit": lambda: transformers.LevitImageProcessor(
        size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}
    ),
    "deit": lambda: transformers.DeiTImageProcessor(),
    "mobilevit": lambda: transformers.MobileViTImageProcessor(
        size={"shortest_edge": 31}, crop_size={"height": 29, "width": 29}
    ),
    "efficientnet": lambda: transformers.EfficientNetImageProcessor(
        size={"height": 31, "width": 31}
    ),
    "efficientnet with offset": lambda: transformers.EfficientNetImageProcessor(
        rescale_offset=True, include_top=False
    ),
}


def make_smooth_image(height: int = 47, width: int = 61) -> np.ndarray:
    rows, columns = np.mgrid[:height, :width] / 30
    channels = [
        128 + 100 * np.sin(3 * rows + channel) * np.cos(2 * columns) for channel in range(3)
    ]
    return np.rint(np.stack(channels, axis=-1)).astype(np.uint8)


@pytest.mark.parametrize("name", PROCESSORS)
def test_preprocessing_equals_the_image_processor(name):
    with quiet():
        processor = PROCESSORS[name]()
    transform = preprocessing_from_processor(processor, 3, "model")
    levels = make_smooth_image()
    expected = torch.from_numpy(np.array(processor(levels)["pixel_values"][0], np.float32))
    picture = torch.from_numpy(levels).permute(2, 0, 1)[None].float() / 255
    result = transform.normalize(transform.resize_images(picture))[0]
    assert result.shape == expected.shape
    deviation = 1 if transform.normalization is None else min(transform.normalization.deviation)
    # The processor rounds to integer levels after each axis.
    assert 255 * deviation * (result - expected).abs().max() <= 1.6


def test_processor_with_reversed_channels_sets_blue_first():
    processor = PROCESSORS["mobilevit"]()
    assert preprocessing_from_processor(processor, 3, "model").blue_first
    assert not preprocessing_from_processor(PROCESSORS["vit"](), 3, "model").blue_first


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": {"longest_edge": 9}}, "size must be"),
        ({"do_pad": True, "pad_size": {"height": 300, "width": 300}}, "do_pad must be"),
    ],
)
def test_unsupported_processor_settings_are_errors(settings, message):
    with quiet():
        processor: Any = transformers.ViTImageProcessor(**settings)
        processor.do_pad = settings.get("do_pad")
    with pytest.raises(ValueError, match=rf"{message}.*got 'model'"):
        preprocessing_from_processor(processor, 3, "model")


def test_find_preprocessing_reads_the_processor_of_a_folder(tmp_path):
    assert load_preprocessing(str(tmp_path), 3) is None
    with quiet():
        transformers.ViTImageProcessor(size={"height": 7, "width": 7}).save_pretrained(tmp_path)
    transform = load_preprocessing(str(tmp_path), 3)
    assert transform is not None
    assert (transform.resize, transform.normalization) == (
        (7, 7),
        Normalize((0.5,) * 3, (0.5,) * 3),
    )
    for file in tmp_path.iterdir():
        file.write_text("{")
    with pytest.raises(ValueError, match="a model with an image processor"):
        load_preprocessing(str(tmp_path), 3)


VISION: dict[str, Any] = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
}
VISION |= {"image_size": 16, "patch_size": 4}
TEXT: dict[str, Any] = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "vocab_size": 9,
}
STAGES: dict[str, Any] = {
    "hidden_sizes": [8] * 4,
    "depths": [1] * 4,
    "num_attention_heads": [1] * 4,
}
SWIN: dict[str, Any] = {
    "image_size": 16,
    "patch_size": 2,
    "embed_dim": 8,
    "depths": [1, 1],
    "num_heads": [1, 1],
    "window_size": 4,
}
RESNET: dict[str, Any] = {
    "embedding_size": 8,
    "hidden_sizes": [8, 8],
    "depths": [1, 1],
    "layer_type": "basic",
}


def masked_autoencoder_features(model, images):
    """Return the class token of a masked autoencoder without masking and with ordered patches."""
    model.config.mask_ratio = 0.0
    return model(images, noise=torch.arange(16.0).expand(len(images), -1)).last_hidden_state[:, 0]


# A function that makes the model, and one that returns its features with transformers alone.
ENCODERS = {
    "clip": (
        lambda: transformers.CLIPModel(
            transformers.CLIPConfig(vision_config=VISION, text_config=TEXT)
        ),
        lambda model, images: model.visual_projection(model.vision_model(images).pooler_output),
    ),
    "siglip": (
        lambda: transformers.SiglipModel(
            transformers.SiglipConfig(vision_config=VISION, text_config=TEXT)
        ),
        lambda model, images: model.vision_model(images).pooler_output,
    ),
    "clip vision with projection": (
        lambda: transformers.CLIPVisionModelWithProjection(transformers.CLIPVisionConfig(**VISION)),
        lambda model, images: model(images).image_embeds,
    ),
    "vit without pooler": (
        lambda: transformers.ViTModel(transformers.ViTConfig(**VISION), add_pooling_layer=False),
        lambda model, images: model(images).last_hidden_state[:, 0],
    ),
    "masked autoencoder": (
        lambda: transformers.ViTMAEModel(transformers.ViTMAEConfig(**VISION)),
        masked_autoencoder_features,
    ),
    "dinov2": (
        lambda: transformers.Dinov2Model(transformers.Dinov2Config(**VISION)),
        lambda model, images: model(images).last_hidden_state[:, 0],
    ),
    "i-jepa": (
        lambda: transformers.IJepaModel(
            transformers.IJepaConfig(**VISION), add_pooling_layer=False
        ),
        lambda model, images: model(images).last_hidden_state.mean(1),
    ),
    "segformer": (
        lambda: transformers.SegformerModel(transformers.SegformerConfig(**STAGES)),
        lambda model, images: model(images).last_hidden_state.mean((2, 3)),
    ),
    "pvt": (
        lambda: transformers.PvtV2Model(transformers.PvtV2Config(image_size=64, **STAGES)),
        lambda model, images: model(images).last_hidden_state.mean((2, 3)),
    ),
    "convnext": (
        lambda: transformers.ConvNextModel(
            transformers.ConvNextConfig(hidden_sizes=[8] * 4, depths=[1] * 4)
        ),
        lambda model, images: model(images).pooler_output,
    ),
    "swin": (
        lambda: transformers.SwinModel(transformers.SwinConfig(**SWIN)),
        lambda model, images: model(images).last_hidden_state.mean(1),
    ),
    "resnet backbone": (
        lambda: transformers.ResNetBackbone(transformers.ResNetConfig(**RESNET)),
        lambda model, images: model(images).feature_maps[-1].mean((2, 3)),
    ),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_encoder_features_equal_those_of_transformers(name, tmp_path):
    make, features = ENCODERS[name]
    side = (
        64 if name in ("segformer", "pvt", "convnext") else 16
    )  # large enough for the strides of these models
    torch.manual_seed(0)
    with quiet():
        model = make().eval()
        model.save_pretrained(tmp_path)
        sizes = {"size": {"height": side, "width": side}}
        transformers.ViTImageProcessor(do_normalize=False, **sizes).save_pretrained(tmp_path)
    subject, images = (
        load_transformers(str(tmp_path), LoadOptions(input_size=side)),
        torch.rand(3, 3, side, side),
    )
    assert (subject.output, subject.num_classes, subject.class_names) == ("features", None, None)
    with torch.no_grad():
        found = subject.function(images)
        assert torch.equal(torch.as_tensor(subject.function(images)), torch.as_tensor(found))
        torch.testing.assert_close(found, features(model, images), atol=1e-5, rtol=1e-5)
    settings = AuditSettings([(0, 0), (0, 1)], parts=(), num_examples=0)
    (metrics,) = audit(subject.function, images, settings=settings).metrics
    assert metrics.output == "features"


@pytest.mark.parametrize(
    ("labels", "problem", "output", "num_classes"),
    [
        (3, "multi_label_classification", "multilabel", 3),
        (1, "regression", "features", None),
        (1, None, "auto", 2),
        (3, None, "auto", 3),
    ],
)
def test_problem_type_determines_the_output(labels, problem, output, num_classes, tmp_path):
    known: dict[str, Any] = {**VISION, "num_labels": labels, "problem_type": problem}
    config = transformers.ViTConfig(**known)
    with quiet():
        transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    subject = load_transformers(str(tmp_path))
    assert (subject.output, subject.num_classes) == (output, num_classes)


def test_unsupported_architecture_is_an_error(vit_folder, tmp_path):
    folder = tmp_path / "depth"
    shutil.copytree(vit_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**config, "architectures": ["ViTForDepthEstimation"]})
    )
    with pytest.raises(ValueError, match="must be one of …ForImageClassification"):
        load_transformers(str(folder))


def test_text_encoder_is_an_error(tmp_path):
    with quiet():
        transformers.BertModel(transformers.BertConfig(**TEXT)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"input of the model must be 'pixel_values', got 'inp"):
        load_transformers(str(tmp_path))


def test_output_name_chooses_the_output(vit_folder):
    images = torch.rand(2, 1, 12, 12)
    subject = load(str(vit_folder), LoadOptions(output_name="logits"))
    assert subject.class_names == CLASSES
    torch.testing.assert_close(subject.function(images), load(str(vit_folder)).function(images))
    with pytest.raises(
        ValueError, match=r"output_name must be one of 'logits'.*got 'pooler_output'"
    ):
        load(str(vit_folder), LoadOptions(output_name="pooler_output")).function(images)
