import pytest
import torch
from torch import nn

from teka import Grid
from teka.nn import MultiheadAttention

CAUSAL = nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.float64)
PADDING = torch.arange(7) >= torch.tensor([[7], [4], [5]])
SIZES = {"dtype": torch.float64, "batch_first": True}


def make_layers(**sizes) -> tuple[nn.MultiheadAttention, MultiheadAttention]:
    """Return a layer of PyTorch, and a layer of teka with the same parameters and softmax."""
    torch.manual_seed(0)
    torch_layer = nn.MultiheadAttention(12, 3, **(SIZES | sizes))
    layer = MultiheadAttention(12, 3, kernel="softmax", relative=None, **(SIZES | sizes))
    layer.load_state_dict(torch_layer.state_dict())
    return torch_layer, layer


def draw_tokens(num_tokens: int = 7, dim: int = 12) -> torch.Tensor:
    return torch.randn(
        3, num_tokens, dim, generator=torch.Generator().manual_seed(dim), dtype=torch.float64
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"key_padding_mask": PADDING},
        {
            "key_padding_mask": torch.zeros(3, 7, dtype=torch.float64).masked_fill(
                PADDING, -torch.inf
            )
        },
        {"attn_mask": CAUSAL},
        {"attn_mask": CAUSAL < 0, "is_causal": True, "average_attn_weights": False},
    ],
    ids=[
        "without masks",
        "padding as flags",
        "padding as numbers",
        "causal as numbers",
        "causal as flags",
    ],
)
def test_softmax_equals_nn_multihead_attention(options: dict):
    torch_layer, ours = make_layers()
    output, expected = (
        layer(*[draw_tokens()] * 3, need_weights=True, **options) for layer in (ours, torch_layer)
    )
    for result, target in zip(output, expected, strict=True):
        torch.testing.assert_close(result, target, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sizes", [{}, {"bias": False}, {"kdim": 5, "vdim": 4}], ids=str)
def test_weights_of_nn_multihead_attention_can_be_loaded(sizes: dict):
    torch_layer = nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 3, 24), 1)
    torch_layer.layers[0].self_attn = nn.MultiheadAttention(12, 3, **sizes)
    layer = nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 3, 24), 1)
    layer.layers[0].self_attn = MultiheadAttention(12, 3, **sizes)
    frequency = layer.state_dict()["layers.0.self_attn.heads.relative.frequency"].clone()
    layer.load_state_dict(torch_layer.state_dict())
    state = layer.state_dict()
    assert all(
        torch.equal(state[name], tensor) for name, tensor in torch_layer.state_dict().items()
    )
    assert torch.equal(state["layers.0.self_attn.heads.relative.frequency"], frequency)


def test_incomplete_state_dict_is_an_error():
    layer = MultiheadAttention(12, 3)
    for name in ("in_proj_weight", "out_proj.bias"):
        state = layer.state_dict()
        del state[name]
        with pytest.raises(RuntimeError, match=name):
            layer.load_state_dict(state)


def test_arguments_have_the_order_of_pytorch():
    assert MultiheadAttention(12, 3, 0.0, True, False, False, 5, 4, True).batch_first
    with pytest.raises(ValueError, match=r"add_bias_kv must be False.*got True"):
        MultiheadAttention(12, 3, add_bias_kv=True)
    with pytest.raises(ValueError, match=r"add_zero_attn must be False.*got True"):
        MultiheadAttention(12, 3, add_zero_attn=True)


def test_weights_under_autocast():
    layer = MultiheadAttention(12, 3, batch_first=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, weights = layer(*[draw_tokens().float()] * 3, need_weights=True)
    assert weights.dtype == output.dtype == torch.bfloat16


@pytest.mark.parametrize("batch_first", [True, False])
def test_keys_and_values_can_have_other_sizes(batch_first: bool):
    torch_layer, layer = make_layers(kdim=5, vdim=4, batch_first=batch_first, bias=False)
    inputs = [draw_tokens(), draw_tokens(9, 5), draw_tokens(9, 4)]
    inputs = inputs if batch_first else [tensor.transpose(0, 1) for tensor in inputs]
    torch.testing.assert_close(layer(*inputs)[0], torch_layer(*inputs)[0], rtol=1e-12, atol=1e-12)


def test_input_without_a_batch():
    torch_layer, layer = make_layers()
    inputs = [draw_tokens()[1]] * 3
    expected = torch_layer(*inputs, key_padding_mask=PADDING[1])[0]
    torch.testing.assert_close(
        layer(*inputs, key_padding_mask=PADDING[1])[0], expected, rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("training", [True, False])
def test_encoder_layer_uses_the_replaced_attention(training: bool):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(12, 2, 24, dropout=0.0, **SIZES)
    layer.self_attn = MultiheadAttention(12, 2, **SIZES, grid=Grid((1, 7)))
    layer.train(training)
    with torch.no_grad():
        output = layer(draw_tokens(), src_key_padding_mask=PADDING)
        attended = layer.norm1(
            draw_tokens() + layer.self_attn(*[draw_tokens()] * 3, key_padding_mask=PADDING)[0]
        )
        expected = layer.norm2(attended + layer.linear2(layer.linear1(attended).relu()))
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)


def test_padding_mask_removes_keys():
    layer = MultiheadAttention(12, 2, **SIZES)
    output = layer(*[draw_tokens()] * 3, key_padding_mask=PADDING)[0][1, :4]
    torch.testing.assert_close(
        output, layer(*[draw_tokens()[1:2, :4]] * 3)[0][0], rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"attn_mask": ~torch.eye(7, dtype=torch.bool)},
            "attn_mask must be the causal mask.*got a mask that excludes 42 of 49 pairs",
        ),
        ({"attn_mask": torch.zeros(7, 5)}, r"attn_mask must have .*got shape \(7, 5\)"),
        (
            {"key_padding_mask": torch.full((3, 7), -1.0)},
            r"key_padding_mask must be booleans.*got \[-1.0\]",
        ),
    ],
)
def test_unsupported_masks_are_errors(options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        MultiheadAttention(12, 2, **SIZES)(*[draw_tokens()] * 3, **options)
