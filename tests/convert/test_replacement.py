import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from teka import Grid
from teka.convert import distill_attention, replace_attention
from teka.convert.replacement import SUBCLASS
from teka.nn import AttentionHeads, MultiheadAttention

PADDING = torch.arange(12) >= torch.tensor([[12], [8]])


def make_encoder() -> nn.TransformerEncoder:
    torch.manual_seed(0)
    return nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dtype=torch.float64), 2
    )


def draw_tokens() -> torch.Tensor:
    return torch.randn(2, 12, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_softmax_replacement_keeps_the_outputs_with_and_without_fast_path():
    model = make_encoder().eval()
    with torch.no_grad():
        before = model(draw_tokens(), src_key_padding_mask=PADDING)
        replace_attention(model, kernel="softmax", relative=None)
        after = model(draw_tokens(), src_key_padding_mask=PADDING)
    torch.testing.assert_close(after[~PADDING], before[~PADDING], rtol=1e-12, atol=1e-12)


def test_parameters_are_kept_and_kernels_use_the_grid():
    model = make_encoder()
    before = dict(model.named_parameters())
    report = replace_attention(model, grid=Grid((3, 4)))
    after = dict(model.named_parameters())
    assert all(after[name] is parameter for name, parameter in before.items())
    assert (
        report.num_new
        == sum(weight.numel() for name, weight in after.items() if name not in before)
        == 2 * 2 * 4 * 2
    )
    assert list(report.replaced) == ["layers.0.self_attn", "layers.1.self_attn"]
    assert "2 layers attend by squared_relu × rotary now" in str(report)
    loss = model(draw_tokens()).square().sum()
    assert all(
        gradient is not None
        for gradient in torch.autograd.grad(loss, list(after.values()), allow_unused=True)
    )


def test_cross_attention_of_a_decoder_is_not_replaced():
    model = nn.Transformer(16, 2, 1, 1, 32, batch_first=True)
    report = replace_attention(model)
    assert isinstance(model.decoder.layers[0].self_attn, MultiheadAttention)
    assert type(model.decoder.layers[0].multihead_attn) is nn.MultiheadAttention
    assert report.left == {
        "decoder.layers.0.multihead_attn": "it attends to other tokens than its own"
    }


def test_attention_pooling_and_named_cross_attention_are_not_replaced():
    class PoolingHead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 2)

    parts = {
        "head": PoolingHead(),
        "encoder_attn": nn.MultiheadAttention(16, 2),
        "own": nn.MultiheadAttention(16, 2),
    }
    report = replace_attention(nn.ModuleDict(parts))
    assert list(report.replaced) == ["own"]
    assert list(report.left) == ["head.attention", "encoder_attn"]


def test_shared_layer_is_replaced_once_and_keeps_its_hooks():
    layer = nn.MultiheadAttention(16, 2)
    calls = []
    layer.register_forward_hook(lambda *_: calls.append(1))
    model = nn.ModuleList([layer, layer])
    replace_attention(model, num_prefix_tokens=1)
    layer(*torch.randn(3, 5, 1, 16))
    assert calls == [1]
    assert isinstance(model[0], MultiheadAttention)
    assert model[0] is model[1]
    heads = model.get_submodule("1.heads")
    assert isinstance(heads, AttentionHeads)
    assert heads.num_prefix_tokens == 1


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (
            nn.Linear(2, 2),
            {},
            "model must be a model with supported attention, got 'Linear'.*MultiheadAttention",
        ),
        (make_encoder(), {"kernel": "square"}, "kernel must be one of.*got 'square'"),
    ],
)
def test_model_without_supported_attention_is_an_error_and_unchanged(
    model: nn.Module, options: dict, message: str
):
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=message):
        replace_attention(model, **options)
    assert model.state_dict().keys() == before.keys()


def test_distillation_approximates_softmax_and_changes_only_kernels():
    model = make_encoder()
    softmax = copy.deepcopy(model)
    replace_attention(model, kernel="hedgehog", relative=None)
    new = {name for name, module in model.named_modules() if isinstance(module, AttentionHeads)}
    before = copy.deepcopy(model.state_dict())
    batches = [
        torch.randn(8, 12, 16, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
        for n in range(30)
    ]
    dropouts = [model.get_submodule(f"layers.{number}.dropout") for number in (0, 1)]
    dropouts[0].eval()
    with torch.no_grad():
        losses = distill_attention(model, batches)
    assert len(losses) == 30
    assert [dropout.training for dropout in dropouts] == [False, True]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert losses[-1] < losses[0]
    changed = {
        name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])
    }
    assert changed
    assert all(any(name.startswith(heads) for heads in new) for name in changed)
    for encoder in (model, softmax):
        encoder.eval()
    errors = []
    for state in (before, copy.deepcopy(model.state_dict())):
        model.load_state_dict(state)
        with torch.no_grad():
            errors.append(float((model(draw_tokens()) - softmax(draw_tokens())).norm()))
    assert errors[1] < errors[0]


def test_distillation_without_learned_kernels_is_an_error():
    model = make_encoder()
    replace_attention(model, relative=None)
    with pytest.raises(
        ValueError, match=r"trainable attention kernels.*got 2 AttentionHeads without parameters"
    ):
        distill_attention(model, [draw_tokens()])


def test_distillation_of_a_frozen_model_is_an_error():
    model = make_encoder()
    replace_attention(model, kernel="hedgehog", relative=None)
    model.requires_grad_(False)
    with pytest.raises(ValueError, match=r"trainable attention kernels.*that require gradients"):
        distill_attention(model, [draw_tokens()])


@pytest.mark.parametrize("batch", [1, None, torch.zeros(2), {"other": torch.zeros(2)}])
def test_distillation_on_inputs_that_the_model_rejects_is_an_error(batch: object):
    model = make_encoder()
    replace_attention(model, kernel="hedgehog", relative=None)
    with pytest.raises(ValueError, match=r"^batches must be inputs that the model accepts"):
        distill_attention(model, [batch])


class CustomForward(nn.MultiheadAttention):
    """An attention layer with another output than its base class."""

    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)[0], None


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (CustomForward(16, 2), SUBCLASS),
        (weight_norm(nn.MultiheadAttention(16, 2), "in_proj_weight"), SUBCLASS),
        (nn.MultiheadAttention(16, 2, add_bias_kv=True), SUBCLASS),
        (nn.MultiheadAttention(16, 2, kdim=8), "it attends to other tokens than its own"),
    ],
)
def test_unsupported_attention_is_left_with_the_reason(layer: nn.Module, reason: str):
    model = nn.ModuleDict({"layer": layer})
    with pytest.warns(UserWarning, match=f"no layer was replaced: {reason}"):
        report = replace_attention(model)
    assert model["layer"] is layer
    assert str(report).startswith(f"No layer was replaced.\n  layer: left, because {reason}")


def test_model_that_is_an_attention_layer_is_replaced():
    model = nn.MultiheadAttention(16, 2, batch_first=True, dtype=torch.float64)
    expected = copy.deepcopy(model)(draw_tokens(), draw_tokens(), draw_tokens())[0]
    report = replace_attention(model, kernel="softmax", relative=None)
    assert "the model itself: was MultiheadAttention" in str(report)
    torch.testing.assert_close(model(draw_tokens(), draw_tokens(), draw_tokens())[0], expected)


def test_cross_attention_with_a_relative_kernel_is_an_error():
    model = nn.ModuleDict(
        {"attention": nn.MultiheadAttention(16, 2, batch_first=True, dtype=torch.float64)}
    )
    without = copy.deepcopy(model)
    expected, _ = model["attention"](draw_tokens(), draw_tokens()[:, :5], draw_tokens()[:, :5])
    replace_attention(without, kernel="softmax", relative=None)
    torch.testing.assert_close(
        without["attention"](draw_tokens(), draw_tokens()[:, :5], draw_tokens()[:, :5])[0], expected
    )
    replace_attention(model)
    with pytest.raises(
        ValueError,
        match=r"the number of keys must be the number of queries, 12, got 5\. .*relative=None",
    ):
        model["attention"](draw_tokens(), draw_tokens()[:, :5], value=draw_tokens()[:, :5])
