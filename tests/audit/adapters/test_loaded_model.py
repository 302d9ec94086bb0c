from types import SimpleNamespace

import torch
from torch import nn

from teka.audit.adapters import LoadedModel, Preprocessing
from teka.audit.adapters.loaded_model import wrap_module
from teka.data import Normalize


class Answers(nn.Module):
    """An object with logits, as the models of transformers return."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 5)

    def forward(self, images):
        return SimpleNamespace(logits=self.linear(images.mean(dim=(2, 3))))


def test_the_function_takes_pictures_normalises_them_and_takes_out_the_logits():
    transform = Preprocessing(3, (7, 5), normalization=Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)))
    module = Answers().eval()
    subject = wrap_module(
        module, name="a", kind="factory", transform=transform, input_size=(7, 5), device=None
    )
    images = torch.rand(2, 3, 7, 5)
    torch.testing.assert_close(subject.function(images), module(transform.normalize(images)).logits)
    assert subject.describe()["parameters"] == 20
    assert subject.describe()["input_size"] == [7, 5]


def test_images_as_the_data_have_them_are_placed_by_the_function():
    transform = Preprocessing(3, 6, crop=(5, 5))
    subject = wrap_module(
        Answers().eval(),
        name="a",
        kind="factory",
        transform=transform,
        input_size=(5, 5),
        device="cpu",
    )
    images = torch.rand(2, 1, 17, 13)
    wide = subject.with_placement()
    torch.testing.assert_close(wide.function(images), subject.function(transform.place(images)))
    assert isinstance(wide.function, nn.Module)
    assert wide.input_size is None
    bare = LoadedModel("b", "onnx", lambda placed: placed.sum(dim=(2, 3)), transform=transform)
    torch.testing.assert_close(
        bare.with_placement().function(images), transform.place(images).sum(dim=(2, 3))
    )


def test_the_wrapper_does_not_hide_the_mode_that_a_module_came_in():
    for module in (nn.Flatten().train(), nn.Flatten().eval()):
        made = wrap_module(
            module,
            name="a",
            kind="factory",
            transform=Preprocessing(),
            input_size=None,
            device=None,
        )
        assert isinstance(made.function, nn.Module)
        assert made.function.training == module.training
