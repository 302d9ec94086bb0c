from dataclasses import dataclass

import pytest
import torch
from torch import nn

from teka.audit.layers.trace import (
    COPIES,
    ModelTrace,
    TraceEvent,
    copy_with_noisy_edges,
    trace_calls,
)
from teka.audit.model_call import ModelError

IMAGES = torch.rand(3, 2, 11, 13, generator=torch.Generator().manual_seed(5))


def trace(model, images=IMAGES):
    with torch.no_grad():
        return ModelTrace(model.eval(), dict(model.named_modules()), images, 1)


def make_convolution(size, **options):
    torch.manual_seed(1)
    return nn.Conv2d(2, 4, size, **options)


def test_noisy_copies_differ_only_in_the_outermost_pixels():
    unchanged, again, rows, columns = copy_with_noisy_edges(IMAGES).unflatten(
        0, (COPIES, len(IMAGES))
    )
    assert torch.equal(unchanged, IMAGES)
    assert torch.equal(again, IMAGES)
    assert torch.equal(rows[:, :, 1:-1], IMAGES[:, :, 1:-1])
    assert torch.equal(columns[..., 1:-1], IMAGES[..., 1:-1])
    assert (rows[:, :, [0, -1]] != IMAGES[:, :, [0, -1]]).all()
    assert (columns[..., [0, -1]] != IMAGES[..., [0, -1]]).all()


def test_width_of_noisy_edges_can_be_set():
    for width in [2, 3]:
        unchanged, _, rows, _ = copy_with_noisy_edges(IMAGES, width).unflatten(
            0, (COPIES, len(IMAGES))
        )
        changed = (unchanged != rows).any(dim=3).all(dim=(0, 1))
        assert changed.tolist() == [True] * width + [False] * (11 - 2 * width) + [True] * width, (
            width
        )


def test_max_pool_ignores_the_last_row_of_odd_sizes():
    assert not trace(nn.MaxPool2d(2)).has_border_on_all_sides
    assert trace(nn.MaxPool2d(2, padding=1)).has_border_on_all_sides


def test_border_contains_cells_that_depend_on_outermost_pixels():
    for model, border in [
        (nn.ReLU(), ((1, 1), (1, 1))),
        (make_convolution(3, padding=1), ((2, 2), (2, 2))),
        (make_convolution((5, 3), padding=(2, 1)), ((3, 3), (2, 2))),
        (make_convolution(3, padding=1, padding_mode="circular"), ((2, 2), (2, 2))),
        # With a dilation, not all cells of the border depend on the outermost pixels.
        (make_convolution(3, padding=2, dilation=2), ((3, 3), (3, 3))),
        (make_convolution(3, padding=1, stride=2), ((1, 1), (1, 1))),
        (make_convolution(3), ((1, 1), (1, 1))),
    ]:
        assert trace(model).tensors[-1].border == border, (model, border)


def test_map_that_depends_on_all_pixels_has_no_interior():
    class MeanSubtraction(nn.Module):
        def forward(self, images):
            return images - images.mean((2, 3), keepdim=True)

    border = trace(MeanSubtraction()).tensors[-1].border
    assert all(
        before + after == side
        for (before, after), side in zip(border, IMAGES.shape[2:], strict=True)
    )


def test_noise_is_the_difference_of_two_equal_copies():
    class Noisy(nn.Module):
        def forward(self, images):
            return images + 0.01 * torch.randn_like(images)

    torch.manual_seed(2)
    found = trace(Noisy())
    assert found.tensors[0].noise == 0.0
    # √2 · 0.01 divided by the root mean square of uniform values in [0, 1], √⅓.
    assert found.tensors[1].noise == pytest.approx(2**0.5 * 0.01 * 3**0.5, rel=0.1)


def test_tensor_is_new_again_after_an_in_place_change():
    found = trace(nn.Sequential(nn.Identity(), nn.ReLU(inplace=True)))
    events = [(event.module_name, event.is_output, event.tensor) for event in found.events]
    first, second = found.tensors
    assert events == [
        ("", False, first),
        ("0", False, first),
        ("0", True, first),
        ("1", False, first),
        ("1", True, second),
        ("", True, second),
    ]
    assert [event.is_new for event in found.events] == [True, False, False, False, True, False]


def test_incomparable_tensors_have_a_reason():
    class FunctionModule(nn.Module):
        def __init__(self, make):
            super().__init__()
            self.make = make

        def forward(self, images):
            return self.make(images)

    for make, reason in (
        (lambda images: images.sum(0), "batch"),
        (lambda images: images.long(), "real"),
        (lambda images: images / 0, "NaN"),
        (lambda images: None, "no tensor"),
    ):
        assert reason in trace(FunctionModule(make)).events[-1].reason


@dataclass
class Output:
    loss: torch.Tensor | None
    logits: torch.Tensor


class ContainerOutput(nn.Module):
    """Module that returns its input in a container, together with a tensor that is not a batch."""

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
                return Output(None, images)


def record_events(model, images):
    """Return the events of a forward pass with their tensors."""
    seen = []
    modules = dict(model.named_modules())
    trace_calls(model, modules, lambda *event: seen.append(event), images, "the images")
    return seen


def summarize(events):
    return [
        (event.module_name, event.is_output, event.caller and event.caller.module_name)
        for event, _ in events
    ]


def test_events_are_in_execution_order_with_the_outer_module():
    model = nn.Sequential(nn.ReLU(), nn.Sequential(nn.Tanh()))
    found = summarize(record_events(model, torch.ones(2, 3)))
    assert found == [
        ("", False, None),
        ("0", False, ""),
        ("0", True, ""),
        ("1", False, ""),
        ("1.0", False, "1"),
        ("1.0", True, "1"),
        ("1", True, ""),
        ("", True, None),
    ]


def test_calls_of_one_module_are_counted_in_each_forward_pass():
    relu = nn.ReLU()
    model = nn.Sequential(relu, nn.Linear(3, 3), relu)
    for _ in range(2):
        events = record_events(model, torch.ones(2, 3))
        calls = [event.call for event, _ in events if event.module is relu]
        assert calls == [1, 1, 2, 2]
    calls = ("0", 1), ("0", 2), ("", 1)
    names = [TraceEvent(name, relu, call, None).name for name, call in calls]
    assert names == ["0", "0 (call 2)", "(model)"]


def test_batched_tensor_is_found_in_any_container():
    for container in ["tuple", "mapping", "dataclass"]:
        images = torch.rand(5, 2, 3)
        *_, (event, tensor) = record_events(ContainerOutput(container), images)
        assert event.is_output, container
        assert tensor is images, container


def test_keyword_inputs_are_recorded():
    class KeywordCall(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = nn.Identity()

        def forward(self, images):
            return self.part(input=images)

    images = torch.rand(5, 2)
    tensors = [
        tensor
        for event, tensor in record_events(KeywordCall(), images)
        if event.module_name == "part"
    ]
    assert all(tensor is images for tensor in tensors)


def test_module_without_a_tensor_output_has_none():
    class NoneOutput(nn.Module):
        def forward(self, _images):
            return None

    assert record_events(NoneOutput(), torch.ones(2, 3))[-1][1] is None


def test_call_ends_if_its_module_raises_an_error():
    class ErrorHandling(nn.Sequential):
        def forward(self, input):
            with pytest.raises(RuntimeError):
                self[0](input)
            return self[1](input)

    model = ErrorHandling(nn.Linear(2, 2), nn.ReLU())
    found = summarize(record_events(model, torch.ones(2, 3)))
    assert found[2:] == [("0", True, ""), ("1", False, ""), ("1", True, ""), ("", True, None)]


def test_hooks_are_removed_if_the_model_raises_an_error():
    class Raising(nn.Module):
        def forward(self, images):
            raise RuntimeError("no")

    model = Raising()
    with pytest.raises(ModelError, match="the model raised RuntimeError for the images: no"):
        record_events(model, torch.ones(2, 3))
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
