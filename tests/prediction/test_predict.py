from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from reproduction.baselines.convolutional import ResNet18
from teka.data import load as load_data
from teka.models import ModelConfig, read_config, save
from teka.prediction import predict, read_images


def accuracy(pictures: list[Path], labels: list[int]) -> float:
    predictions = predict(pictures, "digits", batch_size=64)
    predicted = [prediction.class_names[0] for prediction in predictions]
    return float(np.mean(np.array(predicted) == np.array(labels, dtype=str)))


def test_pictures_of_test_images_are_classified(digits, put):
    levels, labels = digits
    assert accuracy([put(image) for image in levels[:100]], labels[:100]) >= 0.95


def test_large_dark_off_center_pictures_are_classified(digits, put):
    levels, labels = digits
    generator = np.random.default_rng(0)
    pictures = []
    for image in levels[:100]:
        side = int(generator.integers(24, 80))
        large = np.array(Image.fromarray(image).resize((side, side), Image.Resampling.BICUBIC))
        before = generator.integers(0, 100, 2)
        after = generator.integers(10, 100, 2)
        pictures.append(put(255 - np.pad(large, list(zip(before, after, strict=True)))))
    assert accuracy(pictures, labels[:100]) >= 0.92


def test_a_prediction_does_not_depend_on_the_batch(digits, put):
    pictures = [put(image) for image in digits[0][:5]]
    counts: list[tuple[int, int]] = []
    together = predict(pictures, "digits")
    parts = predict(
        pictures, "digits", batch_size=2, progress=lambda done, total: counts.append((done, total))
    )
    assert counts == [(2, 5), (4, 5), (5, 5)]
    for picture, prediction, part in zip(pictures, together, parts, strict=True):
        (alone,) = predict([picture], "digits")
        assert prediction.class_names == alone.class_names == part.class_names
        assert prediction.probabilities == pytest.approx(alone.probabilities, abs=1e-5)
        assert sum(prediction.probabilities) == pytest.approx(1, abs=1e-5)
        assert list(prediction.probabilities) == sorted(prediction.probabilities, reverse=True)


@pytest.mark.parametrize("channels", [1, 3])
def test_whole_pictures_are_read_like_a_folder_of_pictures(channels: int, tmp_path: Path):
    generator = np.random.default_rng(0)
    shape = (11, 9) if channels == 1 else (11, 9, 3)
    for name in ("a", "b"):
        for part in ("train", "test"):
            (tmp_path / part / name).mkdir(parents=True)
            levels = generator.integers(0, 256, shape).astype(np.uint8)
            Image.fromarray(levels).save(tmp_path / part / name / "0.png")
    dataset = load_data(str(tmp_path), image_size=(6, 8), validation_size=0)
    config = ModelConfig("resnet18", (6, 8), channels, 2, {"width": 4})
    pictures = [tmp_path / "test" / name / "0.png" for name in ("a", "b")]
    images = read_images(
        pictures, config.pictures, image_size=config.image_size, in_channels=channels
    )
    assert torch.equal(images, dataset.test.images)


def test_a_folders_model_and_class_names_are_used(put, tmp_path: Path):
    config = ModelConfig("resnet18", (6, 8), 3, 2, {"width": 4}, ("cat", "dog"), {"fit": "whole"})
    torch.manual_seed(0)
    folder = save(ResNet18((6, 8), 3, 2, width=4).eval(), tmp_path / "model", config)
    (prediction,) = predict([put(np.zeros((20, 30, 3), dtype=np.uint8))], folder)
    assert set(prediction.class_names) == {"cat", "dog"}


def test_wrong_input_is_an_error(put, digits, unchecked_annotations: None):
    blank = put(np.zeros((9, 9), dtype=np.uint8))
    with pytest.raises(ValueError, match=rf"{blank}: ink must be .*got none"):
        predict([put(digits[0][0]), blank], "digits")
    with pytest.raises(ValueError, match="pictures must be"):
        predict([], "digits")
    for pictures in (blank, str(blank), iter([blank])):
        with pytest.raises(ValueError, match=r"pictures must be a list of files"):
            predict(pictures, "digits")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"batch_size must be .*got 0"):
        predict([blank], "digits", batch_size=0)
    with pytest.raises(
        ValueError, match=r"model must be one of digits, .*got 'minst'.*Did you mean 'mnist'"
    ):
        predict([blank], "minst")
    with pytest.raises(ValueError, match=r"the model must be a path, got 5"):
        predict([blank], 5)  # pyright: ignore[reportArgumentType]


def test_a_model_that_classifies_pixels_is_an_error(put, tmp_path: Path):
    options = {"dim": 8, "depth": 1, "heads": 2, "head": "dense"}
    config = ModelConfig("performer", (8, 8), 1, 2, options)
    with pytest.raises(ValueError, match="classifier of whole pictures, not of each pixel"):
        predict(
            [put(np.zeros((9, 9), dtype=np.uint8))],
            save(config.make_model(), tmp_path / "model", config),
        )


def test_the_packaged_model_of_digits_has_their_settings():
    assert read_config("digits").pictures == {
        "fit": "ink",
        "canvas": [16, 16],
        "box": [8, 8],
        "stroke": 0.0,
    }
