import dataclasses
import inspect
import json

import pytest
import torch
from torch import nn

from teka.functional import SquaredRelu
from teka.models import MODELS, Performer, ResNet18, SelfAttentionNetwork
from teka.training import Run


def test_a_run_survives_a_round_trip_through_its_file(tmp_path):
    run = Run(position="clipped", betas=(0.8, 0.9), patience=3, data_dir="somewhere")
    run.save(tmp_path)
    assert Run.load(tmp_path) == run


def test_numbers_of_heads_for_every_block_survive_it_too(tmp_path):
    run = Run(model="self_attention", dim=8, depth=2, heads=(3, 1))
    run.save(tmp_path)
    assert Run.load(tmp_path) == run
    model = run.make_model(image_size=(8, 8), in_channels=1, num_classes=3)
    assert isinstance(model, SelfAttentionNetwork)
    assert model.heads == (3, 1)


@pytest.mark.parametrize(
    "fields",
    [{"heads": [3, 1]}, {"heads": [3, "1"], "model": "self_attention"}, {"heads": [True], "model": "self_attention"}],
    ids=str,
)
def test_numbers_of_heads_that_a_model_does_not_take_are_an_error(fields, as_users_run_it):
    with pytest.raises(ValueError, match=r"heads is .*, expected (a whole number|int)"):
        Run.from_dict(fields)


def test_every_field_is_saved(tmp_path):
    Run().save(tmp_path)
    saved = json.loads((tmp_path / "run.json").read_text())
    assert set(saved) == {field.name for field in dataclasses.fields(Run)}


def test_an_unknown_key_is_an_error_that_names_the_nearest():
    with pytest.raises(ValueError, match=r"'learning_rat'.*did you mean 'learning_rate'"):
        Run.from_dict({"learning_rat": 0.1})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epochs", 0),
        ("epochs", 1.5),
        ("epochs", "3"),
        ("epochs", True),
        ("batch_size", 0),
        ("optimizer", "adamm"),
        ("schedule", "cosin"),
        ("learning_rate", 0.0),
        ("learning_rate", float("nan")),
        ("betas", (0.9,)),
        ("betas", (0.9, 1.0)),
        ("momentum", 1.0),
        ("momentum", -0.1),
        ("momentum", "0.9"),
        ("warmup", 1.0),
        ("patience", 0),
        ("gradient_clip", -1.0),
        ("redraw_every", -1),
        ("seed", -1),
        ("data_dir", 3),
    ],
)
def test_a_value_out_of_range_is_an_error_that_names_the_field(field, value, as_users_run_it):
    with pytest.raises(ValueError, match=field):
        Run.from_dict({field: value})


def test_early_stopping_needs_images_held_out():
    with pytest.raises(ValueError, match="patience"):
        Run(patience=2, validation_size=0)


def test_adam_refuses_a_weight_decay_it_would_not_apply():
    with pytest.raises(ValueError, match="weight_decay"):
        Run(optimizer="adam", weight_decay=0.1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"momentum": 0.9}, "momentum is 0.9, expected 0 with optimizer 'adamw', which has betas"),
        ({"optimizer": "sgd", "betas": (0.8, 0.9)}, "betas is .*, expected .* with optimizer 'sgd', which has none"),
    ],
)
def test_an_optimizer_refuses_what_it_does_not_have(fields, message):
    with pytest.raises(ValueError, match=message):
        Run(**fields)


def test_a_folder_without_a_run_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"run\.json"):
        Run.load(tmp_path)


def test_a_file_that_is_not_json_is_an_error(tmp_path):
    (tmp_path / "run.json").write_text("{not json")
    with pytest.raises(ValueError, match="not JSON"):
        Run.load(tmp_path)


def test_the_options_of_a_layer_reach_the_model():
    run = Run(
        position="fourier",
        position_heads=1,
        num_waves=3,
        longest_wave=9.0,
        wave_weight=2.0,
        epsilon=0.25,
        query_key="normalized",
        gate=True,
        value_convolution=3,
    )
    layer = run.make_model(image_size=(6, 6), in_channels=1, num_classes=3).get_submodule("blocks.0.attention")
    names = set(layer.state_dict())
    assert layer.get_parameter("relative.frequency").shape == (1, 3, 2)
    assert {"query_key.key_gain", "gate.projection.weight", "value_convolution.weight"} < names
    assert layer.kernel == SquaredRelu(0.25)
    rotation = Run(position="rotation", rotation_weight_scale=0.0).make_model(
        image_size=(6, 6), in_channels=1, num_classes=3
    )
    assert (rotation.get_parameter("blocks.0.attention.relative.sine_weight") == 0).all()
    rotary = Run(rotary_normalizer="lengths").make_model(image_size=(6, 6), in_channels=1, num_classes=3)
    assert rotary.get_submodule("blocks.0.attention.relative").normalizer == "lengths"


def test_the_models_options_have_the_models_defaults():
    run = {field.name: field.default for field in dataclasses.fields(Run)}
    model = inspect.signature(Performer).parameters
    shared = {name for name in run.keys() & model.keys() if model[name].default is not inspect.Parameter.empty}
    shared -= {"dropout"}  # None is the model's own
    assert {"position", "kernel", "backend", "query_key"} < shared
    assert {name: run[name] for name in shared} == {name: model[name].default for name in shared}
    own = {SelfAttentionNetwork: ("content", "downsampling"), ResNet18: ("resnet_stem",)}
    for other, names in own.items():
        assert all(run[name] == inspect.signature(other).parameters[name].default for name in names)


def test_the_options_of_the_self_attention_network_and_of_the_stem_reach_the_model():
    run = Run(model="self_attention", encoding="table", content="softmax", downsampling=4, heads=9, dim=8, depth=3)
    model = run.make_model(image_size=(8, 8), in_channels=3, num_classes=5)
    assert model.get_parameter("stem.weight").shape == (8, 48)
    assert model.get_parameter("blocks.2.attention.query.weight").shape == (72, 8)
    assert model.get_parameter("blocks.0.attention.relative.head_vectors.0.weight").shape == (9, 8)
    small = Run(model="resnet18", resnet_stem="3x3").make_model(image_size=(8, 8), in_channels=3, num_classes=5)
    assert small.get_parameter("stem.0.weight").shape == (64, 3, 3, 3)


@pytest.mark.parametrize(
    ("field", "value"),
    [("position_heads", 1.5), ("num_waves", "3"), ("rotary_normalizer", 1), ("gate", 1), ("value_convolution", True)],
)
def test_an_option_of_another_type_is_an_error_that_names_the_field(field, value, as_users_run_it):
    with pytest.raises(ValueError, match=field):
        Run.from_dict({field: value})


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_is_made_with_its_own_options(name):
    size = 32 if name in ("alexnet", "vgg16") else 8
    sizes = {} if name in ("alexnet", "vgg16", "resnet18") else {"dim": 8, "depth": 1, "heads": 2, "dropout": 0.25}
    fields = {"model": name, **sizes, **({"pool": "mean"} if name == "performer" else {})}
    with torch.device("meta"):
        model = Run.from_dict(fields).make_model(image_size=(size, size), in_channels=1, num_classes=3)
    assert isinstance(model, MODELS[name])
    dropped = {module.p for module in model.modules() if isinstance(module, nn.Dropout)}
    assert dropped - {0.0} == ({0.25} if sizes else {"resnet18": set()}.get(name, {0.5}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "resnet"}, "model is 'resnet', expected .*did you mean 'resnet18'"),
        ({"model": "resnet18", "dim": 8}, "dim is 8, expected 64 with model='resnet18', without it"),
        ({"model": "vgg16", "position": "none"}, "position is 'none', expected 'rotary' with model='vgg16'"),
        ({"model": "linformer", "tokens": "image", "kernel": "elu"}, "kernel is 'elu'"),
        ({"encoding": "table"}, "encoding is 'table', expected 'quadratic' with model='performer', without it"),
        ({"model": "self_attention", "position": "none"}, "position is 'none', expected 'rotary'"),
        ({"random_shift": -1}, "random_shift is -1"),
        ({"label_smoothing": 1.0}, "label_smoothing is 1.0"),
        ({"precision": "half"}, "precision is 'half'"),
    ],
)
def test_a_field_that_would_have_no_effect_or_is_out_of_range_is_an_error(fields, message, as_users_run_it):
    with pytest.raises(ValueError, match=message):
        Run.from_dict(fields)


@pytest.mark.parametrize(
    "fields",
    [{"betas": ["a", 0.9]}, {"betas": [True, 0.9]}, {"dim": 10**30}, {"seed": 2**32}, {"epochs": 1.5}, {"kernel": []}],
    ids=str,
)
def test_values_of_another_kind_or_size_are_an_error_that_names_the_field(fields, as_users_run_it):
    (name,) = fields
    with pytest.raises(ValueError, match=rf"{name} is .*, expected"):
        Run.from_dict(fields)
