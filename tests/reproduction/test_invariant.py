from functools import partial
from typing import Any

import pytest
import torch
from torch.nn.functional import pad

from reproduction import invariant
from reproduction.__main__ import run_command as main
from reproduction.invariant import (
    EVALUATION_SEEDS,
    compute_rate_factor,
    make_augmented_batch_function,
    make_optimizers,
    shift_images,
    train_and_evaluate_classifier,
)
from teka.data import Dataset, Split
from teka.files import read_json
from teka.models import ConvPerformer, ModelConfig, load, read_config

OPTIONS: dict[str, Any] = {"widths": (4, 8), "attention_heads": (0, 2)}


@pytest.fixture
def dataset(monkeypatch):
    """Return a small data set whose classes differ in brightness, with batches of 10 images."""
    monkeypatch.setattr(invariant, "BATCH_SIZE", 10)
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 2
    images = torch.rand(60, 3, 8, 8, generator=generator) * (1 + labels[:, None, None, None]) / 2
    splits = [Split(images[start::3], labels[start::3]) for start in range(3)]
    return Dataset("bright", *splits, num_classes=2, class_names=("dark", "bright"))


def run(dataset, folder, seed=10):
    path = folder / "state.pt"
    make_model = partial(ConvPerformer, **dataset.sizes, **OPTIONS)
    return train_and_evaluate_classifier(
        make_model,
        dataset,
        seed=seed,
        epochs=3,
        checkpoint=path,
        is_flipped=True,
        is_compiled=False,
    )


def test_a_killed_training_gives_the_same_model(dataset, tmp_path, monkeypatch):
    folders = [tmp_path / name for name in ("whole", "killed")]
    for folder in folders:
        folder.mkdir()
    expected, result = run(dataset, folders[0])

    def kill(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(invariant, "measure_accuracy", kill)
        with pytest.raises(KeyboardInterrupt):
            run(dataset, folders[1])
    resumed, other_result = run(dataset, folders[1])
    assert {**result, "seconds": None} == other_result
    for name, weights in expected.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], weights), name


@pytest.mark.parametrize("seed", [0, EVALUATION_SEEDS[0]])
def test_only_evaluation_seeds_read_the_test_images(dataset, tmp_path, seed):
    _, result = run(dataset, tmp_path, seed)
    assert ("test" in result) == (seed in EVALUATION_SEEDS)
    low, high = result["held_out"]["accuracy_interval"]
    assert low <= result["held_out"]["accuracy"] <= high
    if "consistency" in result:
        # Crops of one image differ, but a shift by whole pixels changes no prediction.
        assert result["consistency"]["circular"] == 1.0
        assert 0 <= result["consistency"]["crop"] <= 1


@pytest.mark.parametrize("name", invariant.MODELS)
def test_every_trained_parameter_has_one_optimizer(name):
    architecture, options = invariant.MODELS[name]
    model = ModelConfig(architecture, (32, 32), 3, 2, options).make_model()
    parameters = [
        parameter
        for optimizer in make_optimizers(model)
        for group in optimizer.param_groups
        for parameter in group["params"]
    ]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert len(parameters) == len(trained)
    assert set(map(id, parameters)) == set(map(id, trained))


def test_without_attention_there_is_one_optimizer():
    model = ConvPerformer(8, 3, 2, widths=(4, 8), attention_heads=(0, 0))
    assert len(make_optimizers(model)) == 1


def test_rates_rise_and_fall_linearly():
    factors = [compute_rate_factor(step, 1000) for step in (0, 115, 230, 615)]
    assert factors == pytest.approx([0.2, 0.6, 1.0, 0.535])


def test_every_image_is_flipped_in_every_second_epoch(monkeypatch):
    monkeypatch.setattr(invariant, "BATCH_SIZE", 4)
    monkeypatch.setattr(invariant, "CROP_SHIFT", 0)
    images = torch.arange(8.0)[:, None, None, None] / 8 + torch.tensor([0.0, 0.1])
    make_batch = make_augmented_batch_function(
        Split(images, torch.arange(8)), 2, 0, is_flipped=True
    )
    is_flipped = torch.zeros(4, 8, dtype=torch.bool)
    for epoch in range(4):
        for step in (2 * epoch, 2 * epoch + 1):
            batch, labels = make_batch(step)
            is_flipped[epoch, labels] = batch[:, 0, 0, 0] > batch[:, 0, 0, 1]
    assert torch.equal(is_flipped[0], ~is_flipped[1])
    assert torch.equal(is_flipped[:2], is_flipped[2:])
    assert 0 < is_flipped[0].sum() < 8


def test_without_mirroring_the_images_are_only_shifted(monkeypatch):
    monkeypatch.setattr(invariant, "BATCH_SIZE", 4)
    images = torch.rand(4, 1, 6, 6)
    make_batch = make_augmented_batch_function(
        Split(images, torch.arange(4)), 1, 0, is_flipped=False
    )
    batch, labels = make_batch(0)
    for image, label in zip(batch, labels, strict=True):
        # A shift by at most 2 pixels keeps the 2 × 2 pixels in the middle.
        windows = image[0].unfold(0, 2, 1).unfold(1, 2, 1)
        assert (windows == images[label, 0, 2:4, 2:4]).flatten(2).all(2).any()


def test_shifted_images_have_reflected_edges():
    images = torch.rand(2, 1, 5, 6)
    shifted = shift_images(images, torch.tensor([[2, -1], [0, 1]]))
    padded = pad(images, (2, 2, 2, 2), mode="reflect")
    assert torch.equal(shifted[0], padded[0, :, 0:5, 3:9])
    assert torch.equal(shifted[1], padded[1, :, 2:7, 1:7])


@pytest.mark.parametrize("seed", [1, EVALUATION_SEEDS[0]])
def test_the_command_saves_a_model_and_its_accuracy(dataset, tmp_path, monkeypatch, seed):
    monkeypatch.setattr(invariant, "load", lambda *_, **__: dataset)
    words = ["invariant", "--data", "cifar10", "--seed", str(seed), "--epochs", "1", "--eager"]
    words += ["--model", "without-attention"]
    assert main([*words, "--threads", "1", "--out", str(tmp_path)]) == 0
    folder = tmp_path / f"cifar10-without-attention-seed-{seed}"
    result: Any = read_json(folder.with_suffix(".json"))
    assert result["model"] == "without-attention"
    assert result["seconds"] > 0
    config: Any = read_config(folder)
    assert config.class_names == ("dark", "bright")
    assert config.facts["run"] == {"data": "cifar10", "seed": seed}
    assert config.facts["training"]["epochs"] == 1
    assert not {"data", "seed", "test"} & config.facts["training"].keys()
    evaluation = {"dataset": "cifar10", **result["test"]} if seed != 1 else None
    assert config.facts.get("evaluation") == evaluation
    assert config.pictures["fit"] == "whole"
    assert load(folder)(dataset.test.images).shape == (len(dataset.test), 2)
