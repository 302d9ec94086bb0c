"""Options for loading a model: weights, normalization and size."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from teka.audit.adapters import LoadOptions, Preprocessing
from teka.audit.adapters.transformers_model import load_transformers

IMAGES = torch.rand(2, 3, 5, 7, generator=torch.Generator().manual_seed(0))


def make_network() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten())


def write_weights(folder: Path, form: str, model: nn.Module) -> Path:
    """Save the weights of a model in a format of training scripts, and return the file."""
    weights, file = (
        dict(model.state_dict()),
        folder / f"weights.{'safetensors' if form == 'safetensors' else 'pt'}",
    )
    if form == "safetensors":
        save_file(weights, file)
    elif form == "by several processes":
        torch.save(
            {
                "epoch": 3,
                "state_dict": {f"module.{name}": weight for name, weight in weights.items()},
            },
            file,
        )
    else:
        torch.save(weights, file)
    return file


@pytest.mark.parametrize("form", ["safetensors", "plain", "by several processes"])
def test_weights_are_loaded_from_a_file(tmp_path: Path, form: str):
    trained = make_network()
    loaded = LoadOptions(weights=write_weights(tmp_path, form, trained)).load_weights(
        make_network()
    )
    torch.testing.assert_close(loaded(IMAGES), trained(IMAGES), rtol=0, atol=0)


def test_wrong_weights_are_an_error(tmp_path: Path):
    file = write_weights(tmp_path, "plain", nn.Linear(3, 2))
    with pytest.raises(
        ValueError, match=r"weights must be the weights of a Sequential \(.*[Mm]iss.*got '.*'"
    ):
        LoadOptions(weights=file).load_weights(make_network())
    torch.save([1, 2], file)
    with pytest.raises(ValueError, match="it holds list, expected tensors by name"):
        LoadOptions(weights=file).load_weights(make_network())
    with pytest.raises(
        ValueError, match=r"weights must be an existing file, or 'random'.*got 'absent'"
    ):
        LoadOptions(weights="absent")


def test_random_weights_are_reproducible_and_keep_the_global_generator(vit_folder: Path):
    torch.manual_seed(7)
    after = torch.rand(3)
    torch.manual_seed(7)
    one, other = (
        load_transformers(str(vit_folder), LoadOptions(weights="random", num_classes=6))
        for _ in range(2)
    )
    assert torch.equal(torch.rand(3), after)
    assert one.weights_hash == other.weights_hash != load_transformers(str(vit_folder)).weights_hash
    assert one.num_classes == 6


def test_options_replace_normalization_and_channel_order():
    preprocessing = Preprocessing(3, (5, 7), normalization=None)
    transform = LoadOptions(
        mean=(0.5, 0.25, 0.125), deviation=(0.5,), blue_first=True
    ).adapt_preprocessing(preprocessing)
    mean = torch.tensor([0.5, 0.25, 0.125])[:, None, None]
    torch.testing.assert_close(transform.normalize(IMAGES), (IMAGES.flip(1) - mean) / 0.5)
    assert LoadOptions().adapt_preprocessing(preprocessing) == preprocessing
    assert LoadOptions(input_size=9).adapt_preprocessing(preprocessing).output_size == (9, 9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean": (0.5,)}, "deviation must be given together with mean"),
        ({"deviation": (0.5,)}, "mean must be given together with deviation"),
        (
            {"mean": (0.5,), "deviation": (0.0,)},
            "deviation must be 3 positive finite numbers, as many as in mean, got (0.0, 0.0, 0.0)",
        ),
        (
            {"mean": (0.5, 0.5), "deviation": (0.5, 0.5)},
            "mean must be one number, or one for each of 3 channels, got (0.5, 0.5)",
        ),
        ({"num_classes": 0}, "num_classes must be at least 1, got 0"),
    ],
)
def test_invalid_options_are_errors(options: dict, message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        LoadOptions(**options).adapt_preprocessing(Preprocessing(3))


def test_one_mean_for_unknown_channels_is_an_error():
    with pytest.raises(
        ValueError, match=r"mean must be one number for each channel, got \(0.5,\)\. The model"
    ):
        LoadOptions(mean=(0.5,), deviation=(0.5,)).adapt_preprocessing(Preprocessing())
