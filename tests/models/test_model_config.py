from typing import Any

import pytest
import torch

from reproduction.baselines import SelfAttentionNetwork
from teka.codec import decode, encode
from teka.models import ModelConfig, PerformerConfig
from teka.models.model_config import MODELS, model_class, options_class, register_model

PERFORMER: dict[str, Any] = {
    "model": "performer",
    "image_size": (6, 10),
    "in_channels": 2,
    "num_classes": 3,
    "options": {"dim": 8, "depth": 2, "heads": 2},
}


def test_config_is_encoded_and_decoded():
    config = ModelConfig(
        **PERFORMER,
        class_names=("a", "b", "c"),
        pictures={"fit": "whole"},
        facts={"seed": [0, None]},
    )
    assert decode(ModelConfig, encode(config)) == config


def test_options_for_every_block_are_encoded_and_decoded():
    options = {"dim": 8, "depth": 2, "heads": (3, 1)}
    config = ModelConfig("self_attention", (6, 10), 2, 3, options)
    assert config == ModelConfig("self_attention", (6, 10), 2, 3, {**options, "heads": [3, 1]})
    assert decode(ModelConfig, encode(config)) == config
    model = config.make_model()
    assert isinstance(model, SelfAttentionNetwork)
    assert model.heads == (3, 1)
    assert options["heads"] == (3, 1)


def test_old_names_of_options_are_accepted():
    config = ModelConfig(
        "self_attention", (6, 10), 2, 3, {"dim": 8, "depth": 1, "heads": 2, "encoding": "table"}
    )
    assert config.options["position"] == "table"
    with pytest.raises(ValueError, match=r"performer.options must be no field 'encoding'"):
        ModelConfig(
            "performer", (6, 10), 2, 3, {"encoding": "table", "dim": 8, "depth": 2, "heads": 2}
        )


def test_a_registered_model_has_a_name(monkeypatch: pytest.MonkeyPatch):
    class Small(torch.nn.Module):
        def __init__(self, image_size: int, in_channels: int, num_classes: int, width: int = 2):
            super().__init__()

    monkeypatch.setattr("teka.models.model_config.MODELS", dict(MODELS))
    register_model("small", Small)
    register_model("small", Small)
    assert isinstance(ModelConfig("small", (6, 10), 2, 3, {"width": 3}).make_model(), Small)
    with pytest.raises(
        ValueError, match="name must be a name that no other model has, got 'small'"
    ):
        register_model("small", torch.nn.Identity)


def test_unregistered_baseline_is_an_error_with_the_import(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("teka.models.model_config.MODELS", {"performer": MODELS["performer"]})
    message = "model must be one of 'performer', got 'vgg16'.*import `reproduction.baselines` first"
    with pytest.raises(ValueError, match=message):
        ModelConfig("vgg16", (32, 32), 3, 10)


@pytest.mark.parametrize("model", MODELS)
def test_the_options_of_every_model_are_a_dataclass(model: str):
    required = {"dim": 8, "depth": 2, "heads": 2} if model == "performer" else {}
    options = decode(options_class(model), required)
    assert decode(options_class(model), encode(options)) == options
    # The options of a Performer are the fields of its config.
    owner = PerformerConfig if model == "performer" else model_class(model)
    assert options_class(model).__doc__ == owner.__doc__


def test_making_a_model_does_not_change_the_random_state():
    torch.manual_seed(3)
    state = torch.get_rng_state()
    model = ModelConfig(**PERFORMER).make_model()
    assert torch.equal(torch.get_rng_state(), state)
    assert not model.training


def test_a_model_is_made_in_float32_with_any_default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        model = ModelConfig(**PERFORMER).make_model()
    finally:
        torch.set_default_dtype(torch.float32)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"model": "perfomer"}, "model must be .*got 'perfomer'.*Did you mean 'performer'"),
    ({"image_size": [6] * 4}, "image_size must be"),
    ({"image_size": 6}, r"image_size must be .*got 6"),
    ({"image_size": [6, 0]}, r"image_size\[1\] must be .*got 0"),
    ({"in_channels": True}, r"in_channels must be .*got True"),
    ({"num_classes": "3"}, r"num_classes must be .*got '3'"),
    ({"options": {"dim": 8, "depth": 2}}, r"performer.options.heads is missing"),
    (
        {"options": {**PERFORMER["options"], "kernl": "relu"}},
        "performer.options must be no field 'kernl'.*Did you mean 'kernel'",
    ),
    (
        {"options": {**PERFORMER["options"], "num_classes": 3}},
        "performer.options must be no field 'num_classes'",
    ),
    (
        {"options": {**PERFORMER["options"], "stem": torch.nn.Identity()}},
        r"options must be a mapping of names to JSON data",
    ),
    ({"options": [8, 2, 2]}, r"options must be a dictionary"),
    ({"facts": {"loss": float("nan")}}, r"facts must be a mapping of names to JSON data"),
    ({"class_names": ["a", "b"]}, r"class_names must be 3 strings"),
    ({"class_names": "abc"}, r"class_names must be .*got 'abc'"),
    ({"licence": "MIT"}, "no field 'licence'"),
]


def test_invalid_field_is_an_error_with_its_name(unchecked_annotations: None):
    for fields, message in BAD:
        with pytest.raises(ValueError, match=message):
            decode(ModelConfig, {**PERFORMER, **fields})


def test_a_missing_size_is_an_error(unchecked_annotations: None):
    with pytest.raises(ValueError, match="num_classes is missing"):
        decode(
            ModelConfig, {key: value for key, value in PERFORMER.items() if key != "num_classes"}
        )


def test_bad_options_are_errors_when_the_model_is_made(unchecked_annotations: None):
    for name, value in {"dim": "8", "heads": None, "mlp_ratio": -1.0, "kernel": 3}.items():
        with pytest.raises(ValueError, match=name):
            ModelConfig(
                **{**PERFORMER, "options": {**PERFORMER["options"], name: value}}
            ).make_model()
