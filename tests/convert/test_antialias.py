import copy
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from teka.audit import Movement, axis_shifts, locate_layers
from teka.audit.layers.fixes import FIXES
from teka.convert import fix
from teka.convert.antialias import SAMPLED_CLASSES, SharedSamplingOffsets
from tests.annotations import annotations_unchecked

SIDES = (16, 8)
EVERY_SHIFT = tuple(itertools.product(range(0, SIDES[0], 3), range(SIDES[1])))


def draw_images(number=3, channels=2):
    return torch.randn(
        number, channels, *SIDES, dtype=torch.float64, generator=torch.Generator().manual_seed(5)
    )


class Bottleneck(nn.Module):
    """Sum of two strided branches. Another layer precedes the stride of the first branch."""

    def __init__(self, channels, stride):
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(channels, 4, 1),
            nn.ReLU(),
            nn.Conv2d(4, channels, 3, stride, padding=1, groups=2),
        )
        self.shortcut = nn.Conv2d(channels, channels, 1, stride)

    def forward(self, maps):
        return (self.residual(maps) + self.shortcut(maps)).relu()


class PatchModel(nn.Module):
    """Patch embedding with a class token and learned positions, followed by attention."""

    def __init__(self):
        super().__init__()
        self.project = nn.Conv2d(2, 8, 4, 4)
        self.cls_token, self.pos_embed = (
            nn.Parameter(torch.randn(1, 1, 8)),
            nn.Parameter(torch.randn(1, 9, 8)),
        )
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, pictures):
        tokens = self.project(pictures).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls_token.expand(len(tokens), -1, -1), tokens], 1) + self.pos_embed
        return self.attend(tokens, tokens, tokens, need_weights=False)[0][:, 0]


def make_network(*layers, seed=0):
    torch.manual_seed(seed)
    for layer in layers:
        for module in layer.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()).double().eval()


def make_patch_model():
    torch.manual_seed(0)
    return PatchModel().double().eval()


NETWORKS = {
    "convolution and pooling": lambda: make_network(
        nn.Conv2d(2, 6, 3, 2, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
    ),
    "windows without padding": lambda: make_network(
        nn.MaxPool2d(2), nn.Conv2d(2, 6, 2, 2), nn.ReLU()
    ),
    "dilated": lambda: make_network(
        nn.Conv2d(2, 6, 3, 2, padding=2, dilation=2), nn.ReLU(), nn.Conv2d(6, 4, 3, padding=1)
    ),
    "different strides per axis": lambda: make_network(
        nn.Conv2d(2, 6, (5, 3), (4, 2), padding=(2, 1)), nn.ReLU()
    ),
    "padded by a module": lambda: make_network(
        nn.ZeroPad2d(1), nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2)
    ),
    "added branches": lambda: make_network(
        nn.Conv2d(2, 4, 3, padding=1), Bottleneck(4, 2), Bottleneck(4, 1)
    ),
    "tokens with positions": make_patch_model,
}


def locate_layer_errors(model, movement=None, largest=4):
    return locate_layers(
        model, draw_images(), axis_shifts(largest), movement or Movement("circular")
    )


@torch.no_grad()
def largest_change(model, shifts=EVERY_SHIFT):
    unshifted = model(draw_images())
    outputs = [model(draw_images().roll(shift, (2, 3))) for shift in shifts]
    return max(float((output - unshifted).norm() / unshifted.norm()) for output in outputs)


@pytest.mark.parametrize("name", NETWORKS)
def test_fixed_network_is_shift_invariant_and_keeps_its_state(name):
    model = NETWORKS[name]()
    before, predictions = copy.deepcopy(model.state_dict()), model(draw_images())
    fixed_model, report = fix(model, locate_layer_errors(model))
    assert largest_change(model) > 1e-3
    assert largest_change(fixed_model) < 1e-12
    assert any(report.fixed.values())
    # The original model is unchanged, and each model loads the state of the other.
    assert torch.equal(model(draw_images()), predictions)
    for key, tensor in fixed_model.state_dict().items():
        assert torch.equal(tensor, before[key]) == (key not in report.parameters), key
    model.load_state_dict(fixed_model.state_dict())
    fixed_model.load_state_dict(before)


def test_fixed_network_is_shift_invariant_in_float32():
    model = NETWORKS["added branches"]()
    fixed_model, _ = fix(model, locate_layer_errors(model))
    fixed_model.float()
    pictures = draw_images().float()
    with torch.no_grad():
        torch.testing.assert_close(
            fixed_model(pictures.roll((5, 3), (2, 3))), fixed_model(pictures), rtol=1e-5, atol=1e-5
        )


def test_separate_offsets_of_branches_break_invariance():
    model = NETWORKS["added branches"]()
    fixed_model, _ = fix(model, locate_layer_errors(model))
    for module in fixed_model.modules():
        if hasattr(module, "offsets"):
            vars(module)["offsets"] = SharedSamplingOffsets()
    assert largest_change(fixed_model) > 1e-3


@pytest.mark.parametrize("seed", range(4))
def test_blur_reduces_the_change_of_random_networks(seed):
    layers = (
        nn.Conv2d(2, 8, 3, 2, padding=1, padding_mode="circular"),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.ReLU(),
    )
    model = make_network(*layers, seed=seed)
    fixed_model, report = fix(model, locate_layer_errors(model), ["blur"])
    assert report.fixed == {"blur": ("0", "2")}
    assert largest_change(fixed_model) < 0.7 * largest_change(model)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 6, 3, 2, padding=1, groups=2),
        nn.Conv2d(4, 6, 3, 2, padding=2, dilation=2, bias=False),
        nn.Conv2d(4, 6, 4, (2, 4), padding=(1, 0), padding_mode="reflect"),
        nn.MaxPool2d(3, 2, padding=1),
        nn.MaxPool2d(2, dilation=2, padding=1),
        nn.AvgPool2d(3, 2, padding=1, divisor_override=5),
    ],
    ids=str,
)
def test_sampled_layer_without_fixes_equals_the_original(layer):
    maps = draw_images(channels=4)
    expected = layer.double()(maps)
    layer.__class__ = SAMPLED_CLASSES[type(layer)]
    layer.separate_padding_and_stride(set(), SharedSamplingOffsets())
    torch.testing.assert_close(layer(maps), expected, rtol=1e-12, atol=1e-12)


def test_positions_fix_averages_positions_except_the_class_token():
    model = make_patch_model()
    fixed_model, report = fix(model, locate_layer_errors(model), ["positions"])
    assert report.parameters == ("pos_embed",)
    found, before = fixed_model.get_parameter("pos_embed"), model.pos_embed
    assert torch.equal(found[:, :1], before[:, :1])
    torch.testing.assert_close(found[:, 1:], before[:, 1:].mean(1, keepdim=True).expand(-1, 8, -1))


def test_shared_layer_stays_shared_and_keeps_its_hooks():
    shared, calls = nn.MaxPool2d(2), []
    model = make_network(shared, nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), shared)
    shared.register_forward_hook(lambda *_: calls.append(1))
    fixed_model, report = fix(model, locate_layer_errors(model))
    assert report.fixed["polyphase"] == ("0",)
    assert fixed_model.get_submodule("0") is fixed_model.get_submodule("3")
    assert largest_change(fixed_model) < 1e-12
    calls.clear()
    fixed_model(draw_images())
    assert len(calls) == 2


def test_two_forward_passes_choose_separate_offsets():
    tower = NETWORKS["convolution and pooling"]()
    fixed_model, _ = fix(tower, locate_layer_errors(tower))
    first, second = draw_images(), draw_images().roll((3, 1), (2, 3))
    together = [fixed_model(first), fixed_model(second)]
    torch.testing.assert_close(together[0], together[1], rtol=1e-12, atol=1e-12)


def test_copy_of_a_fixed_model_shares_no_offsets():
    model = NETWORKS["added branches"]()
    fixed_model, _ = fix(model, locate_layer_errors(model))
    predictions = fixed_model(draw_images())
    fixed_model(draw_images().flip(2))
    torch.testing.assert_close(
        copy.deepcopy(fixed_model)(draw_images()), predictions, rtol=1e-12, atol=1e-12
    )


def test_gradients_reach_every_parameter():
    model = NETWORKS["added branches"]()
    fixed_model, _ = fix(model, locate_layer_errors(model))
    fixed_model(draw_images()).square().sum().backward()
    assert all(
        parameter.grad is not None and parameter.grad.abs().sum() > 0
        for parameter in fixed_model.parameters()
    )


class Checkpointed(Bottleneck):
    """Block whose shortcut chooses the offset, and whose residual branch is recomputed."""

    use_reentrant = None

    def forward(self, maps):
        shortcut = self.shortcut(maps)
        if self.use_reentrant is None:
            return (shortcut + self.residual(maps)).relu()
        return (shortcut + checkpoint(self.residual, maps, use_reentrant=self.use_reentrant)).relu()


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("order", ["together", "first call first", "last call first"])
def test_recomputation_uses_the_offsets_of_its_forward_pass(use_reentrant, order):
    model = make_network(nn.Conv2d(2, 4, 3, padding=1), Checkpointed(4, 2), Checkpointed(4, 1))
    fixed_model, _ = fix(model, locate_layer_errors(model))
    fixed_model.train()
    batches = [draw_images(), draw_images().roll((1, 3), (2, 3)), draw_images().flip(2)]

    def gradients(use_reentrant):
        Checkpointed.use_reentrant = use_reentrant
        fixed_model.zero_grad()
        losses = [
            (fixed_model(batch) * torch.arange(1.0, 5, dtype=torch.float64)).sum()
            for batch in batches
        ]
        if order == "together":
            torch.stack(losses).sum().backward()
        else:
            for loss in losses if order == "first call first" else reversed(losses):
                loss.backward()
        return [copy.deepcopy(parameter.grad) for parameter in fixed_model.parameters()]

    try:
        expected, recomputed = gradients(None), gradients(use_reentrant)
    finally:
        Checkpointed.use_reentrant = None
    for gradient, other in zip(expected, recomputed, strict=True):
        torch.testing.assert_close(other, gradient, rtol=1e-10, atol=1e-10)


@annotations_unchecked()
def test_layers_share_an_offset_across_a_graph_break():
    model = make_network(Bottleneck(2, 2))
    fixed_model, _ = fix(model, locate_layer_errors(model))
    expected = fixed_model(draw_images())
    block: Any = fixed_model.get_submodule("0")
    block.shortcut = torch.compiler.disable(block.shortcut)
    torch.testing.assert_close(
        torch.compile(fixed_model, backend="eager")(draw_images()), expected, rtol=1e-12, atol=1e-12
    )


def test_interrupted_pass_leaves_no_offset():
    block = Bottleneck(2, 2)
    model = make_network(block)
    fixed_model, _ = fix(model, locate_layer_errors(model))
    shortcut = fixed_model.get_submodule("0.shortcut")
    expected = fixed_model(draw_images())

    def stop(*_):
        raise RuntimeError

    handle = shortcut.register_forward_pre_hook(stop)
    with pytest.raises(RuntimeError):
        fixed_model(draw_images().flip(3))
    handle.remove()
    assert torch.equal(fixed_model(draw_images()), expected)


def test_threads_share_no_offsets():
    model = NETWORKS["added branches"]()
    fixed_model, _ = fix(model, locate_layer_errors(model))
    batches = [draw_images().roll((shift, shift % 5), (2, 3)) * (1 + shift) for shift in range(8)]
    with torch.no_grad():
        expected = [fixed_model(batch) for batch in batches]
        # Every thread waits between the layer that chooses the offset and the layer that uses it.
        barrier = threading.Barrier(4, timeout=30)
        fixed_model.get_submodule("1.shortcut").register_forward_pre_hook(
            lambda *_: (barrier.wait(), None)[1]
        )
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(torch.no_grad()(fixed_model), batches))
    for output, expected_output in zip(found, expected, strict=True):
        torch.testing.assert_close(output, expected_output, rtol=1e-12, atol=1e-12)


@annotations_unchecked()
def test_fixed_model_is_exported_with_a_dynamic_batch_size():
    model = NETWORKS["added branches"]()
    fixed_model, _ = fix(model, locate_layer_errors(model), ["circular", "blur", "polyphase"])
    dynamic = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(fixed_model, (draw_images(),), dynamic_shapes=dynamic).module()
    for number in (1, 2, 5):
        torch.testing.assert_close(
            program(draw_images(number)), fixed_model(draw_images(number)), rtol=1e-12, atol=1e-12
        )
    # The export leaves no traced tensors in the model.
    torch.testing.assert_close(
        fixed_model(draw_images(5)), program(draw_images(5)), rtol=1e-12, atol=1e-12
    )


def test_per_sample_gradients_of_a_fixed_model():
    model = NETWORKS["added branches"]()
    fixed_model, _ = fix(model, locate_layer_errors(model))
    parameters = dict(fixed_model.named_parameters())

    def loss(parameters, picture):
        return torch.func.functional_call(fixed_model, parameters, (picture[None],)).square().sum()

    found = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, draw_images())
    for index, picture in enumerate(draw_images()):
        expected = torch.autograd.grad(loss(parameters, picture), list(parameters.values()))
        for gradients, gradient in zip(found.values(), expected, strict=True):
            torch.testing.assert_close(gradients[index], gradient, rtol=1e-10, atol=1e-10)


def test_model_without_applicable_fix_is_unchanged():
    model = make_network(nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"), nn.ReLU())
    fixed_model, report = fix(model, locate_layer_errors(model))
    assert (report.fixed, report.left, str(report)) == (
        {},
        {},
        "nothing to fix: no fix applies to a layer that breaks equivariance",
    )
    assert torch.equal(fixed_model(draw_images()), model(draw_images()))
    _, report = fix(model, locate_layer_errors(model), ["blur", "positions"])
    assert str(report) == "blur: no applicable layer\npositions: no applicable layer"


def test_fixed_model_is_not_fixed_again():
    model = NETWORKS["added branches"]()
    fixed_model, _ = fix(model, locate_layer_errors(model))
    assert fix(fixed_model, locate_layer_errors(fixed_model))[1].fixed == {}


def test_layers_that_cannot_be_fixed_are_listed_with_the_reason():
    class CustomConvolution(nn.Conv2d):
        pass

    model = make_network(nn.Conv2d(2, 4, 3, 2), CustomConvolution(4, 4, 3, 2, padding=1), nn.ReLU())
    fixed_model, report = fix(model, locate_layer_errors(model), ["circular", "polyphase"])
    reason = "its output size (7, 3) times its stride (2, 2) is not its input size (16, 8)"
    assert report.left["polyphase"]["0"] == reason
    assert "it is a CustomConvolution" in report.left["circular"]["1"]
    assert f"polyphase: not 0: {reason}" in str(report)
    assert torch.equal(fixed_model(draw_images()), model(draw_images()))


def test_every_fix_is_applied():
    models = NETWORKS["convolution and pooling"](), make_patch_model()
    reports = [fix(model, locate_layer_errors(model), list(FIXES))[1] for model in models]
    assert all(reports[0].fixed[name] or reports[1].fixed[name] for name in FIXES)


def test_bad_input_is_an_error():
    model = make_network(nn.Conv2d(2, 4, 3, 2, padding=1))
    found = locate_layer_errors(model)
    with pytest.raises(
        ValueError, match=r"fixes must be .*got 'polyphas'.*Did you mean 'polyphase'"
    ):
        fix(model, found, ["polyphas"])
    with pytest.raises(ValueError, match=r"fixes must be a list of.*got 'blur'"):
        fix(model, found, "blur")
    with pytest.raises(ValueError, match=r"layers must be .*got None"):
        fix(model, None)
    with pytest.raises(ValueError, match=r"layers must be a layer of this Linear.*got '0'"):
        fix(nn.Linear(2, 2), found)
