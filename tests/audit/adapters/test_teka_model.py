import pytest
import torch

from teka import models
from teka.audit.adapters.teka_model import load_model_file, load_run
from teka.training import Run, restore, train


def test_the_packaged_models_take_pictures_and_have_names():
    subject = load_model_file("digits")
    assert (subject.input_size, subject.in_channels, subject.num_classes) == ((16, 16), 1, 10)
    assert subject.class_names == tuple("0123456789")
    images = torch.rand(3, 1, 16, 16)
    with torch.inference_mode():
        torch.testing.assert_close(subject.function(images), models.load("digits")(images))


def test_a_run_gives_its_best_model(tmp_path):
    run = Run(image_size=11, train_size=48, validation_size=16, dim=8, depth=2, heads=2, epochs=1, batch_size=16)
    train(run, tmp_path / "run")
    subject = load_run(tmp_path / "run")
    assert (subject.kind, subject.input_size, subject.num_classes) == ("teka run", (11, 11), 10)
    images = torch.rand(2, 1, 11, 11)
    with torch.inference_mode():
        torch.testing.assert_close(subject.function(images), restore(tmp_path / "run").model(images))


def test_what_is_no_model_of_ours_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"run\.json"):
        load_run(tmp_path)
    with pytest.raises(ValueError, match=r"config\.json"):
        load_model_file(tmp_path)
