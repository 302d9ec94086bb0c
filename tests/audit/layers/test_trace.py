from dataclasses import dataclass

import pytest
import torch
from torch import nn

from teka.audit.layers.trace import Trace, call_name


@dataclass
class Answer:
    loss: torch.Tensor | None
    logits: torch.Tensor


class Wrapping(nn.Module):
    """Gives its input back in a container, after what has no row for each image."""

    def __init__(self, container):
        super().__init__()
        self.container = container

    def forward(self, images):
        counts = torch.arange(3)
        match self.container:
            case "tuple":
                return None, counts, images
            case "mapping":
                return {"counts": counts, "hidden": (images,)}
            case _:
                return Answer(None, images)


def visits(model, images, modules=None):
    seen = []
    with Trace(dict(model.named_modules()) if modules is None else modules, lambda *one: seen.append(one)) as trace:
        trace.start(len(images))
        model(images)
    return seen


def test_visits_come_in_the_order_of_execution_with_the_module_around_them():
    model = nn.Sequential(nn.ReLU(), nn.Sequential(nn.Tanh()))
    found = [(one.module, one.side, one.inside) for one, _, _ in visits(model, torch.ones(2, 3))]
    assert found == [
        ("", "input", None),
        ("0", "input", ("", 1)),
        ("0", "output", ("", 1)),
        ("1", "input", ("", 1)),
        ("1.0", "input", ("1", 1)),
        ("1.0", "output", ("1", 1)),
        ("1", "output", ("", 1)),
        ("", "output", None),
    ]


def test_calls_of_one_module_within_a_pass_are_told_apart_and_counted_anew_in_the_next():
    relu = nn.ReLU()
    model = nn.Sequential(relu, nn.Linear(3, 3), relu)
    for _ in range(2):
        calls = [one.call for one, module, _ in visits(model, torch.ones(2, 3)) if module is relu]
        assert calls == [1, 1, 2, 2]
    assert (call_name("0", 1), call_name("0", 2), call_name("", 1)) == ("0", "0 (call 2)", "(model)")


@pytest.mark.parametrize("container", ["tuple", "mapping", "dataclass"])
def test_the_tensor_with_a_row_for_each_image_is_found_in_any_container(container):
    images = torch.rand(5, 2, 3)
    *_, (visit, _, tensor) = visits(Wrapping(container), images)
    assert visit.side == "output"
    assert tensor is images


def test_an_input_given_by_name_is_found():
    class Calling(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = nn.Identity()

        def forward(self, images):
            return self.part(input=images)

    images = torch.rand(5, 2)
    tensors = [tensor for one, _, tensor in visits(Calling(), images) if one.module == "part"]
    assert all(tensor is images for tensor in tensors)


def test_a_module_without_any_tensor_is_visited_with_none():
    class Silent(nn.Module):
        def forward(self, _images):
            return None

    assert visits(Silent(), torch.ones(2, 3))[-1][2] is None


def test_no_hook_is_left_when_the_model_raises():
    class Raising(nn.Module):
        def forward(self, images):
            raise RuntimeError("no")

    model = Raising()
    with pytest.raises(RuntimeError, match="no"):
        visits(model, torch.ones(2, 3))
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
