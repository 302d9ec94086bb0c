import hashlib
import json
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import save as pack_tensors
from torch import nn

import teka.models
from teka.errors import wrong_value
from teka.files import read_json, write_json
from teka.models import ModelConfig, load, read_config, save
from teka.models.model_config import MODELS, model_class
from teka.models.model_file import CONFIG_FILE, PRETRAINED, WEIGHTS_FILE
from teka.models.performer_config import POSITIONS
from tests.models.small_performer import SIZE, draw_images, kernel_for
from tests.models.test_models import SMALL

TINY = {"dim": 8, "depth": 2, "heads": 2}
# Options of a Performer that change its function or its parameters.
OPTIONS: list[dict[str, Any]] = [
    *({"position": position, "kernel": kernel_for(position)} for position in POSITIONS),
    *(
        {"kernel": kernel}
        for kernel in ("softmax", "hyperbolic", "taylor2", "hedgehog", "focused", "elu")
    ),
    {"kernel": "constant", "position": "fourier"},
    {
        "kernel": "positive",
        "num_features": 7,
        "position": "fourier",
        "num_waves": 2,
        "longest_wave": 9.0,
    },
    {"stem": "convolution", "periodic": True, "pool": "mean"},
    {"pool": "attention", "patch_size": 2, "mlp_ratio": 2.0, "qkv_bias": False, "dim_head": 3},
    {
        "rotary_normalizer": "lengths",
        "query_key": "normalized",
        "gate": True,
        "value_convolution": 3,
        "dropout": 0.1,
    },
    {
        "position": "clipped",
        "position_heads": 1,
        "epsilon": 0.1,
        "query_key": "centred",
        "backend": "rings",
    },
]


def make(
    model: str = "performer",
    image_size: tuple[int, int] = SIZE,
    in_channels: int = 2,
    **options: Any,
):
    """Return a model with updated buffers, and its config."""
    torch.manual_seed(5)
    options = {**(TINY if model == "performer" else {}), **options}
    config = ModelConfig(model, image_size, in_channels, 3, options, facts={"seed": 5})
    module = model_class(model)(image_size, in_channels, 3, **options)
    with torch.no_grad():
        module.train()(torch.rand(4, in_channels, *image_size))  # Updates statistics and centroids.
    return module.eval(), config


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model, config = make()
    return save(model, tmp_path / "model", config)


def check_same(saved: nn.Module, folder: Path, images: torch.Tensor) -> None:
    """Check that every tensor and every logit equals that of the saved model."""
    loaded = load(folder)
    assert not any(module.training for module in loaded.modules())
    state = loaded.state_dict()
    assert state.keys() == saved.state_dict().keys()
    for name, tensor in saved.state_dict().items():
        assert state[name].dtype == tensor.dtype
        assert torch.equal(state[name], tensor), name
    torch.testing.assert_close(loaded(images), saved(images))


@pytest.mark.parametrize("name", MODELS)
def test_saving_and_loading_every_model(name: str, tmp_path: Path):
    model, config = make(name, (32, 32), 3, **SMALL[name])
    save(model, tmp_path / "model", config)
    assert read_config(tmp_path / "model") == config
    check_same(model, tmp_path / "model", torch.rand(2, 3, 32, 32))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_saving_and_loading_a_performer_with_every_option(
    options: dict[str, Any], tmp_path: Path, unchecked_annotations: None
):
    model, config = make(**options)
    save(model, tmp_path / "model", config)
    check_same(model, tmp_path / "model", draw_images())


def test_float16_files_are_smaller_and_loaded_in_float32(tmp_path: Path):
    model, config = make(dim=32)
    sizes = {}
    for dtype in ("float32", "float16"):
        folder = save(model, tmp_path / dtype, config, dtype=dtype)
        sizes[dtype] = (folder / WEIGHTS_FILE).stat().st_size
        loaded = load(folder)
        assert {tensor.dtype for tensor in loaded.state_dict().values()} == {torch.float32}
        torch.testing.assert_close(loaded(draw_images()), model(draw_images()), rtol=0, atol=5e-3)
    assert sizes["float16"] < 0.7 * sizes["float32"]


def test_saving_and_loading_do_not_change_the_random_state_or_the_model(tmp_path: Path):
    model, config = make()
    model.train()
    state = torch.get_rng_state()
    load(save(model, tmp_path / "model", config))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("name", PRETRAINED)
def test_pretrained_models_have_class_names(name: str):
    config = read_config(name)
    assert config.class_names is not None
    assert config.class_names[3] == {"cifar10": "cat", "fashion-mnist": "Dress"}.get(name, "3")
    model = load(name)
    with torch.inference_mode():
        assert model(torch.rand(2, config.in_channels, *config.image_size)).shape == (2, 10)
    facts: Any = config.facts
    assert facts["evaluation"]["accuracy"] > {"cifar10": 0.8, "fashion-mnist": 0.9}.get(name, 0.95)


def test_pretrained_models_are_small_and_have_a_model_card():
    folder = Path(teka.models.__file__).parent / "pretrained"
    assert {path.name for path in folder.iterdir()} == set(PRETRAINED)
    for name in PRETRAINED:
        card, facts = (
            (folder / name / "README.md").read_text(encoding="utf-8"),
            read_config(name).facts,
        )
        run, evaluation = (cast(dict[str, Any], facts[part]) for part in ("run", "evaluation"))
        assert f"seed {run['seed']}." in card, name
        # The accuracy of the stored weights.
        measured = float(card.split("**")[1].removesuffix(" %"))
        assert measured == pytest.approx(100 * evaluation["accuracy"], abs=0.1), name
    assert all(path.stat().st_size < 7e6 for path in folder.rglob("*"))


def edit(folder: Path, **changes: Any) -> None:
    """Change keys of the config. None removes a key."""
    content = {**read_json(folder / CONFIG_FILE), **changes}
    write_json(
        folder / CONFIG_FILE, {key: value for key, value in content.items() if value is not None}
    )


def put_weights(folder: Path, content: bytes) -> None:
    """Replace the weights, and their description in the config."""
    (folder / WEIGHTS_FILE).write_bytes(content)
    edit(
        folder,
        weights={
            "sha256": hashlib.sha256(content).hexdigest(),
            "bytes": len(content),
            "dtype": "float32",
        },
    )


def test_files_of_the_first_version_have_its_default_stem(tmp_path: Path):
    config = ModelConfig("performer", (5, 7), 1, 3, options={**TINY, "stem": "patch"})
    save(config.make_model(), tmp_path / "old", config)
    edit(tmp_path / "old", format_version=1, options=TINY)
    assert read_config(tmp_path / "old") == config
    assert load(tmp_path / "old").get_parameter("stem.weight").shape == (8, 1, 1, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 3}, "format_version must be 1 or 2.*got 3"),
        ({"format_version": None}, r"format_version must be .*got None"),
        ({"weights": None}, r"weights must be .*got None"),
        ({"weights": {"sha256": 3, "bytes": 3}}, "weights must be"),
        ({"model": "performr"}, "Did you mean 'performer'"),
        ({"options": {**TINY, "widht": 3}}, "performer.options must be no field 'widht'"),
        ({"options": {**TINY, "kernel": "sofmax"}}, "Did you mean 'softmax'"),
        ({"options": {**TINY, "dim": 16}}, r"must have shape \(16,\).*got \(8,\)"),
        ({"options": {**TINY, "depth": 1, "pool": "mean"}}, " is unknown"),
        ({"options": {**TINY, "depth": 3}}, "is missing"),
        (
            {"options": {**TINY, "depth": 10**9}},
            "depth must be a whole number up to 10000.*got 1000000000",
        ),
        ({"options": {**TINY, "depth": 10**4}}, "size of the model"),
        ({"options": {**TINY, "dim": 40_000, "heads": 1}}, "size of the model"),
        ({"image_size": [10**9, 10**9]}, "image_size must be at most 50,000,000 pixels"),
        ({"in_channels": 10**30}, "in_channels must be"),
        ({"options": {"dim": [], "depth": 2, "heads": 2}}, "dim must be"),
        ({"num_classes": 4}, r"head.bias of .* must have shape \(4,\).*got \(3,\)"),
    ],
    ids=str,
)
def test_config_that_does_not_match_the_weights_is_an_error(
    changes: dict[str, Any], message: str, folder: Path, unchecked_annotations: None
):
    edit(folder, **changes)
    with pytest.raises(ValueError, match=message):
        load(folder)


def test_damaged_weights_are_errors(folder: Path, tmp_path: Path):
    whole = (folder / WEIGHTS_FILE).read_bytes()
    (folder / WEIGHTS_FILE).write_bytes(whole[:-100])
    with pytest.raises(
        ValueError, match=rf"number of bytes of .*{WEIGHTS_FILE} must be .*got {len(whole) - 100}"
    ):
        load(folder)
    (folder / WEIGHTS_FILE).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ValueError, match="SHA-256"):
        load(folder)
    torch.manual_seed(6)
    save(model_class("performer")(SIZE, 2, 3, **TINY), tmp_path / "other", read_config(folder))
    (folder / WEIGHTS_FILE).write_bytes((tmp_path / "other" / WEIGHTS_FILE).read_bytes())
    with pytest.raises(ValueError, match="SHA-256"):
        load(folder)


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04 a zip", pack_tensors({"a": torch.ones(50)})[:-60]], ids=range(3)
)
def test_weights_in_another_format_are_an_error(content: bytes, folder: Path):
    put_weights(folder, content)
    with pytest.raises(ValueError, match="a whole safetensors file"):
        load(folder)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_nonfinite_weights_are_an_error(number: float, folder: Path):
    state = load(folder).state_dict()
    state["head.weight"][1, 2] = number
    put_weights(folder, pack_tensors(state))
    with pytest.raises(
        ValueError, match=r"head\.weight of .* must be finite values.*got not finite"
    ):
        load(folder)


def test_integer_weights_are_an_error(folder: Path):
    put_weights(
        folder,
        pack_tensors({name: t.to(torch.int32) for name, t in load(folder).state_dict().items()}),
    )
    with pytest.raises(ValueError, match=r"must be torch.float32.*got 'torch.int32'"):
        load(folder)


def test_missing_files_and_bad_json_are_errors(folder: Path, tmp_path: Path):
    for path in (tmp_path / "none", folder / CONFIG_FILE):
        with pytest.raises(ValueError, match="the model must be one of digits, mnist"):
            load(path)
    (folder / WEIGHTS_FILE).unlink()
    with pytest.raises(ValueError, match=f"a folder that holds {WEIGHTS_FILE}"):
        load(folder)
    (folder / CONFIG_FILE).write_text('{"model": ')
    with pytest.raises(ValueError, match="invalid JSON"):
        load(folder)
    (folder / CONFIG_FILE).unlink()
    with pytest.raises(ValueError, match=r"must be a file with a JSON object, got no file"):
        read_config(folder)


def test_a_missing_safetensors_names_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(ImportError, match=r"pip install 'teka\[train\]'"):
        load(folder)


def test_a_config_with_missing_options_is_not_saved(tmp_path: Path):
    model, config = make(periodic=True, pool="mean")
    forgetful = ModelConfig(config.model, config.image_size, 2, 3, {**TINY, "pool": "mean"})
    with pytest.raises(ValueError, match="the options of the model"):
        save(model, tmp_path / "model", forgetful)
    with pytest.raises(ValueError, match=r"model must be 'performer'.*got 'Sequential'"):
        save(nn.Sequential(model), tmp_path / "model", config)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "dtype"), [(float("nan"), "float32"), (1e5, "float16")])
def test_weights_outside_the_range_of_the_dtype_are_an_error(
    number: float, dtype: str, tmp_path: Path
):
    model, config = make()
    with torch.no_grad():
        model.get_parameter("head.bias")[1] = number
    with pytest.raises(ValueError, match=r"not finite|logits"):
        save(model, tmp_path / "model", config, dtype=dtype)
    with pytest.raises(ValueError, match=r"dtype must be .*got 'float8'"):
        save(make()[0], tmp_path / "model", config, dtype="float8")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", [None, 5, ""])
def test_a_model_that_is_no_path_is_an_error(path: Any, unchecked_annotations):
    with pytest.raises(ValueError, match=f"the model must be a path, got {path!r}"):
        load(path)


def test_only_a_model_file_is_replaced(folder: Path, tmp_path: Path):
    model, config = make(gate=True)
    save(model, folder, config)
    check_same(model, folder, draw_images())
    (tmp_path / "file").write_text("")
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "notes.txt").write_text("keep")
    for place in ("file", "else"):
        with pytest.raises(ValueError, match="path must be"):
            save(model, tmp_path / place, config)
    assert (tmp_path / "else" / "notes.txt").read_text() == "keep"
    assert {path.name for path in tmp_path.iterdir()} == {"model", "file", "else"}


@pytest.mark.parametrize("writer", ["write_json", "write_bytes"])
def test_a_failed_write_keeps_the_old_file(
    writer: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(path: Path, _: object) -> None:
        raise wrong_value("disk", str(path), "space")

    model, config = make(gate=True)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr(f"teka.models.model_file.{writer}", fail)
    for place in (folder, tmp_path / "new"):
        with pytest.raises(ValueError, match="space"):
            save(model, place, config)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_config_is_plain_json(folder: Path):
    content = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    assert content["model"] == "performer"
    assert content["options"] == TINY
    assert (
        content["weights"]["sha256"]
        == hashlib.sha256((folder / WEIGHTS_FILE).read_bytes()).hexdigest()
    )
