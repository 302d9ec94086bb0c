import pytest
import torch

from teka import models
from teka.audit.adapters import LOADERS, LoadOptions, load
from teka.cli.local_models import LOCAL_LOADERS, load_model_file, load_model_of_run
from teka.models import ModelConfig, save
from teka.training import Run, restore, train


def test_packaged_model_has_input_size_and_class_names():
    subject = load("digits", loaders=LOCAL_LOADERS)
    assert (subject.kind, subject.input_size, subject.in_channels) == (
        "teka model file",
        (16, 16),
        1,
    )
    assert subject.class_names == tuple("0123456789")
    images = torch.rand(3, 1, 16, 16)
    with torch.inference_mode():
        torch.testing.assert_close(subject.function(images), models.load("digits")(images))


def test_run_folder_is_loaded_as_its_best_model(tmp_path):
    run = Run.from_fields(
        image_size=11,
        train_size=48,
        validation_size=16,
        dim=8,
        depth=2,
        heads=2,
        epochs=1,
        batch_size=16,
    )
    train(run, tmp_path / "run")
    subject = load(str(tmp_path / "run"), loaders=LOCAL_LOADERS)
    assert (subject.kind, subject.input_size, subject.num_classes) == ("teka run", (11, 11), 10)
    images = torch.rand(2, 1, 11, 11)
    with torch.inference_mode():
        torch.testing.assert_close(
            subject.function(images), restore(tmp_path / "run").model(images)
        )


def test_packaged_model_takes_precedence_over_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = ModelConfig("resnet18", (8, 8), 1, 3)
    save(config.make_model(), tmp_path / "digits", config)
    assert load("digits", loaders=LOCAL_LOADERS).num_classes == 10
    assert load("./digits", loaders=LOCAL_LOADERS).num_classes == 3


@pytest.mark.parametrize("size", [16, (16, 16)])
def test_input_size_must_be_the_size_of_the_model(size):
    assert load("digits", LoadOptions(input_size=size), loaders=LOCAL_LOADERS).input_size == (
        16,
        16,
    )
    with pytest.raises(ValueError, match=r"input_size must be \(16, 16\).*got 20"):
        load("digits", LoadOptions(input_size=20), loaders=LOCAL_LOADERS)


def test_unknown_model_is_an_error_with_every_accepted_form(tmp_path):
    with pytest.raises(ValueError, match=r"run\.json"):
        load_model_of_run(str(tmp_path), LoadOptions())
    with pytest.raises(ValueError, match=r"config\.json"):
        load_model_file(str(tmp_path), LoadOptions())
    with pytest.raises(ValueError, match="one of") as caught:
        load("dgits", loaders=LOCAL_LOADERS)
    assert all(loader.form in str(caught.value) for loader in (*LOADERS, *LOCAL_LOADERS))
