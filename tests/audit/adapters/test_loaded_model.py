from types import SimpleNamespace

import torch
from torch import nn

from teka.audit.adapters import LoadedModel, LoadOptions, Preprocessing
from teka.audit.adapters.loaded_model import loaded_model_from_module
from teka.data import Normalize


class ModelWithLogits(nn.Module):
    """Model that returns an object with logits, like transformers models."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 5)

    def forward(self, images):
        return SimpleNamespace(logits=self.linear(images.mean(dim=(2, 3))))


def test_function_normalizes_images_and_selects_the_logits():
    transform = Preprocessing(3, (7, 5), normalization=Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)))
    module = ModelWithLogits().eval()
    model = loaded_model_from_module(module, "a", "factory", transform, LoadOptions())
    images = torch.rand(2, 3, 7, 5)
    torch.testing.assert_close(model.function(images), module(transform.normalize(images)).logits)
    assert model.describe()["parameters"] == 20
    assert model.describe()["input_size"] == [7, 5]


def test_resizing_function_resizes_images():
    transform = Preprocessing(3, 6, crop=(5, 5))
    model = loaded_model_from_module(
        ModelWithLogits().eval(), "a", "factory", transform, LoadOptions(device="cpu")
    )
    assert model.input_size == (5, 5)
    images = torch.rand(2, 1, 17, 13)
    resizing = model.resizing_function()
    torch.testing.assert_close(resizing(images), model.function(transform.resize_images(images)))
    assert isinstance(resizing, nn.Module)
    bare = LoadedModel("b", "onnx", lambda resized: resized.sum(dim=(2, 3)), transform=transform)
    expected = transform.resize_images(images).sum(dim=(2, 3))
    torch.testing.assert_close(bare.resizing_function()(images), expected)


def test_layers_keep_their_names_if_an_output_or_a_size_is_chosen():
    transform = Preprocessing(3, 6, crop=(5, 5))
    module = ModelWithLogits().eval()
    options = LoadOptions(output_name="logits")
    model = loaded_model_from_module(module, "a", "factory", transform, options).with_output(
        "logits"
    )
    images = torch.rand(2, 1, 17, 13)
    for function in (model.function, model.resizing_function()):
        assert isinstance(function, nn.Module)
        assert [name for name, _ in function.named_modules()] == ["", "model", "model.linear"]
    resized = transform.resize_images(images)
    torch.testing.assert_close(model.function(resized), module(resized).logits)
    torch.testing.assert_close(model.resizing_function()(images), module(resized).logits)


def test_wrap_module_keeps_training_or_evaluation_mode():
    for module in (nn.Flatten().train(), nn.Flatten().eval()):
        model = loaded_model_from_module(module, "a", "factory", Preprocessing(), LoadOptions())
        assert isinstance(model.function, nn.Module)
        assert model.function.training == module.training


def test_preprocessing_is_declared_by_the_loader_or_the_options():
    for is_declared, mean, expected in [
        (True, None, True),
        (False, None, False),
        (False, 0.5, True),
    ]:
        values = None if mean is None else (mean,)
        options = LoadOptions(mean=values, deviation=values)
        model = loaded_model_from_module(
            nn.Flatten(), "a", "factory", Preprocessing(3), options, is_declared=is_declared
        )
        assert model.declares_preprocessing == expected
