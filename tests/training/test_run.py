import copy
import json

import pytest
import torch
from torch import nn

from reproduction.baselines import SelfAttentionNetwork
from teka.functional import SquaredRelu
from teka.models.model_config import MODELS, model_class
from teka.training import Recipe, Run
from teka.training.run import DataOptions, ModelOptions


def test_run_is_saved_and_loaded(tmp_path):
    for run in (
        Run(),
        Run.from_fields(position="clipped", betas=(0.8, 0.9), patience=3, data_dir="somewhere"),
        Run.from_fields(model="self_attention", dim=8, depth=2, heads=(3, 1)),
    ):
        run.save(tmp_path)
        assert Run.load(tmp_path) == run
        saved = json.loads((tmp_path / "run.json").read_text())
        parts = (*vars(run.images), "model", *run.network.options, *vars(run.recipe), "seed")
        assert list(saved) == list(parts)


def test_run_has_the_fields_of_its_data_model_and_recipe():
    run = Run.from_fields(data="mnist", position="clipped", epochs=3)
    assert run == Run(
        DataOptions("mnist"), ModelOptions("performer", {"position": "clipped"}), Recipe(epochs=3)
    )
    assert (run.data, run.model, run.position, run.epochs, run.seed) == (
        "mnist",
        "performer",
        "clipped",
        3,
        0,
    )
    assert run.replace(seed=7, depth=5) == Run.from_fields(
        data="mnist", position="clipped", epochs=3, seed=7, depth=5
    )
    assert copy.deepcopy(run) == run
    with pytest.raises(AttributeError, match="'Run' object has no attribute 'epoch'"):
        _ = run.epoch


def test_runs_of_older_versions_are_loaded():
    old = {"model": "self_attention", "position": "rotary", "encoding": "table"}
    assert Run.from_dict(old) == Run.from_fields(model="self_attention", position="table")
    assert Run.from_dict({"encoding": "quadratic", "dropout": None, "tokens": "pixel"}) == Run()
    assert Run.from_dict({"model": "resnet18", "stem": "patch", "dim": 64}) == Run.from_fields(
        model="resnet18"
    )
    assert Run.from_fields(model="self_attention").position == "quadratic"
    with pytest.raises(
        ValueError, match=r"run key with model='performer' must be .*got 'encoding'"
    ):
        Run.from_dict({"encoding": "table"})


def test_unsupported_numbers_of_heads_are_an_error(unchecked_annotations):
    for heads, model, message in (
        ([3, 1], "linformer", r"heads must be a whole number"),
        ([3, "1"], "self_attention", r"heads must be a whole number or"),
        ([True], "self_attention", r"heads must be a whole number or"),
    ):
        with pytest.raises(ValueError, match=message):
            Run.from_dict({"heads": heads, "model": model})


def test_unknown_key_is_an_error_with_the_closest_name():
    with pytest.raises(ValueError, match=r"'learning_rat'.*Did you mean 'learning_rate'"):
        Run.from_dict({"learning_rat": 0.1})


INVALID_VALUES = (
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
    ("betas", ["a", 0.9]),
    ("betas", [True, 0.9]),
    ("momentum", 1.0),
    ("momentum", -0.1),
    ("momentum", "0.9"),
    ("warmup", 1.0),
    ("patience", 0),
    ("gradient_clip", -1.0),
    ("gradient_clip", float("inf")),
    ("redraw_every", -1),
    ("random_shift", -1),
    ("label_smoothing", 1.0),
    ("precision", "half"),
    ("seed", -1),
    ("seed", 2**32),
    ("seed", 0.5),
    ("data_dir", 3),
    ("kernel", []),
    ("position_heads", 1.5),
    ("num_waves", "3"),
    ("rotary_normalizer", 1),
    ("gate", 1),
    ("value_convolution", True),
)


def test_invalid_value_is_an_error_with_the_name_of_the_field(unchecked_annotations):
    for field, value in INVALID_VALUES:
        with pytest.raises(ValueError, match=rf"{field}(\[\d\])? must be"):
            Run.from_dict({field: value})


FIELDS_WITHOUT_EFFECT = (
    ({"model": "resnet"}, "model must be .*got 'resnet'.*Did you mean 'resnet18'"),
    ({"model": "resnet18", "dim": 8}, "run key with model='resnet18' must be .*got 'dim'"),
    ({"model": "vgg16", "position": "none"}, "run key with model='vgg16' .*got 'position'"),
    ({"model": "linformer", "tokens": "image", "kernel": "elu"}, "run key .*got 'kernel'"),
    ({"content": "softmax"}, "run key with model='performer' must be .*got 'content'"),
    ({"head": "dense"}, "head must be 'pooled', got 'dense'"),
    ({"patience": 2, "validation_size": 0}, "patience must be None with validation_size=0, got 2"),
    (
        {"optimizer": "adam", "weight_decay": 0.1},
        "weight_decay must be 0 with optimizer='adam', got 0.1",
    ),
    ({"momentum": 0.9}, "momentum must be 0 with optimizer='adamw', got 0.9"),
    ({"optimizer": "sgd", "betas": (0.8, 0.9)}, "betas must be .* with optimizer='sgd', got"),
)


def test_field_without_effect_is_an_error(unchecked_annotations):
    for fields, message in FIELDS_WITHOUT_EFFECT:
        with pytest.raises(ValueError, match=message):
            Run.from_dict(fields)


def test_missing_or_malformed_run_file_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"run\.json"):
        Run.load(tmp_path)
    (tmp_path / "run.json").write_text("{not json")
    with pytest.raises(ValueError, match="invalid JSON"):
        Run.load(tmp_path)


def test_layer_options_are_passed_to_the_model():
    run = Run.from_fields(
        position="fourier", position_heads=1, num_waves=3, longest_wave=9.0, wave_weight=2.0, epsilon=0.25,
        query_key="normalized", gate=True, value_convolution=3,
    )  # fmt: skip
    layer = run.make_model(image_size=(6, 6), in_channels=1, num_classes=3).get_submodule(
        "blocks.0.attention"
    )
    names = set(layer.state_dict())
    assert layer.get_parameter("relative.frequency").shape == (1, 3, 2)
    assert {"query_key.key_gain", "gate.projection.weight", "value_convolution.weight"} < names
    assert layer.kernel == SquaredRelu(0.25)
    rotation = Run.from_fields(position="rotation", rotation_weight_scale=0.0).make_model(
        image_size=(6, 6), in_channels=1, num_classes=3
    )
    assert (rotation.get_parameter("blocks.0.attention.relative.sine_weight") == 0).all()
    rotary = Run.from_fields(rotary_normalizer="lengths", mlp_ratio=2.0).make_model(
        image_size=(6, 6), in_channels=1, num_classes=3
    )
    assert rotary.get_submodule("blocks.0.attention.relative")().normalizer == "lengths"
    assert rotary.get_parameter("blocks.0.mlp.0.weight").shape == (128, 64)


def test_network_and_stem_options_are_passed_to_the_model():
    run = Run.from_fields(
        model="self_attention",
        position="table",
        content="softmax",
        downsampling=4,
        heads=9,
        dim=8,
        depth=3,
    )
    model = run.make_model(image_size=(8, 8), in_channels=3, num_classes=5)
    assert model.get_parameter("stem.weight").shape == (8, 48)
    assert model.get_parameter("blocks.2.attention.query.weight").shape == (72, 8)
    assert model.get_parameter("blocks.0.attention.relative.head_vectors.0.weight").shape == (9, 8)
    several = Run.from_fields(model="self_attention", dim=8, depth=2, heads=(3, 1))
    made = several.make_model(image_size=(8, 8), in_channels=1, num_classes=3)
    assert isinstance(made, SelfAttentionNetwork)
    assert made.heads == (3, 1)
    small = Run.from_fields(model="resnet18", resnet_stem="3x3").make_model(
        image_size=(8, 8), in_channels=3, num_classes=5
    )
    assert small.get_parameter("stem.0.weight").shape == (64, 3, 3, 3)


def test_every_model_is_made_with_its_options():
    for name in MODELS:
        size = 32 if name in ("alexnet", "vgg16") else 8
        sizes = (
            {}
            if name in ("alexnet", "vgg16", "resnet18", "conv_performer")
            else {"dim": 8, "depth": 1, "heads": 2, "dropout": 0.25}
        )
        fields = {"model": name, **sizes, **({"pool": "mean"} if name == "performer" else {})}
        with torch.device("meta"):
            model = Run.from_dict(fields).make_model(
                image_size=(size, size), in_channels=1, num_classes=3
            )
        assert isinstance(model, model_class(name)), name
        dropped = {module.p for module in model.modules() if isinstance(module, nn.Dropout)}
        assert dropped - {0.0} == (
            {0.25} if sizes else {"resnet18": set(), "conv_performer": set()}.get(name, {0.5})
        ), name
