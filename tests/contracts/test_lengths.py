import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import grad

from teka import Grid
from teka.functional import attention
from teka.nn import Attention, TransformerBlock
from tests.contracts.cases import (
    PAIRS,
    PAIRS_WITH_POSITIONS,
    Case,
    for_each,
    parametrize_by_kernel,
    relative_error,
)

TOLERANCE = 1e-10
LENGTHS = (11, 1, 6)  # the first sample has no padding
LONGEST = max(LENGTHS)


def build(pair: Case, *, causal: bool = False, num_axes: int = 2) -> Attention:
    torch.manual_seed(0)
    layer = Attention(
        8, 2, kernel=pair.kernel, relative=pair.relative, causal=causal, num_axes=num_axes
    )
    layer = layer.double().eval()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return layer


def draw_ragged(num_axes: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens and positions with large values at the padding, and lengths."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randn(len(LENGTHS), LONGEST, 8, dtype=torch.float64, generator=generator)
    positions = 5 * torch.rand(
        len(LENGTHS), LONGEST, num_axes, dtype=torch.float64, generator=generator
    )
    lengths = torch.tensor(LENGTHS)
    padding = torch.arange(LONGEST) >= lengths[:, None]
    return tokens + 50.0 * padding[..., None], positions + 1e3 * padding[..., None], lengths


@parametrize_by_kernel(PAIRS_WITH_POSITIONS, causal=[False, True])
def test_sample_with_a_length_equals_the_sample_alone(pair: Case, causal: bool):
    layer, (tokens, positions, lengths) = build(pair, causal=causal), draw_ragged()
    options: dict[str, Tensor] = {} if pair.relative is None else {"positions": positions}
    together = layer(tokens, lengths=lengths, **options)
    for sample, length in enumerate(LENGTHS):
        part = (slice(sample, sample + 1), slice(0, length))
        alone = layer(tokens[part], **{name: value[part] for name, value in options.items()})
        assert relative_error(together[part], alone) <= TOLERANCE
        assert not together[sample, length:].any()


@parametrize_by_kernel(PAIRS, causal=[False, True])
def test_short_sequence_equals_a_short_grid(pair: Case, causal: bool):
    layer, (tokens, _, lengths) = build(pair, causal=causal, num_axes=1), draw_ragged()
    together = layer(tokens, Grid(LONGEST), lengths=lengths)
    for sample, length in enumerate(LENGTHS):
        part = (slice(sample, sample + 1), slice(0, length))
        assert relative_error(together[part], layer(tokens[part], Grid(length))) <= TOLERANCE
        assert not together[sample, length:].any()


@parametrize_by_kernel(PAIRS_WITH_POSITIONS)
def test_padding_has_no_gradient(pair: Case):
    layer, (tokens, positions, lengths) = build(pair, causal=True), draw_ragged()
    options = {} if pair.relative is None else {"positions": positions}
    tokens.requires_grad_()
    layer(tokens, lengths=lengths, **options).square().sum().backward()
    assert tokens.grad is not None
    for sample, length in enumerate(LENGTHS):
        assert not tokens.grad[sample, length:].any()
    assert all(
        parameter.grad is None or parameter.grad.isfinite().all()
        for parameter in layer.parameters()
    )


@parametrize_by_kernel(PAIRS_WITH_POSITIONS)
def test_lengths_equal_a_mask(pair: Case):
    layer, (tokens, positions, lengths) = build(pair), draw_ragged()
    if pair.kernel == "optimal":
        return  # it is fitted to the queries, and only lengths mask queries
    options = {} if pair.relative is None else {"positions": positions}
    mask = torch.arange(LONGEST) < lengths[:, None]
    by_mask, by_lengths = (
        layer(tokens, None, mask, **options),
        layer(tokens, lengths=lengths, **options),
    )
    assert relative_error(by_mask[mask], by_lengths[mask]) <= TOLERANCE


def test_full_lengths_change_nothing():
    layer, (tokens, positions, _) = build(Case("squared_relu", "fourier")), draw_ragged()
    full = layer(tokens, positions=positions, lengths=torch.full((3,), LONGEST))
    assert relative_error(full, layer(tokens, positions=positions)) <= TOLERANCE


def test_ignoring_lengths_would_fail():
    layer, (tokens, positions, lengths) = build(Case("squared_relu", "fourier")), draw_ragged()
    padded, is_correct = (
        layer(tokens, positions=positions, lengths=given) for given in (None, lengths)
    )
    kept = torch.arange(LONGEST) < lengths[:, None]
    kept[0] = False  # the sample without padding
    assert relative_error(padded[kept], is_correct[kept]) > 0.1
    assert padded[1, 1:].any()


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "negative": (
        {"lengths": torch.tensor([11, -1, 6])},
        r"lengths must be whole numbers from 0 to 11.*got \[11, -1, 6\]",
    ),
    "too many": (
        {"lengths": torch.tensor([11, 12, 6])},
        r"lengths must be whole numbers from 0 to 11.*got \[11, 12, 6\]",
    ),
    "of another batch": (
        {"lengths": torch.tensor([11, 6])},
        r"lengths must have shape \(3,\).*got \(2,\)",
    ),
    "no whole numbers": (
        {"lengths": torch.tensor([11.0, 1.0, 6.0])},
        r"lengths must be of an integer dtype.*got torch.float32",
    ),
    "flags": (
        {"lengths": torch.ones(3, dtype=torch.bool)},
        r"lengths must be of an integer dtype.*got torch.bool",
    ),
    "of a token each": (
        {"lengths": torch.ones(3, 11, dtype=torch.long)},
        r"lengths must have shape \(3,\).*got \(3, 11\)",
    ),
    "with a mask": (
        {"lengths": torch.tensor(LENGTHS), "key_mask": torch.ones(3, 11, dtype=torch.bool)},
        "key_mask must be None with lengths, got both",
    ),
}


@for_each(BAD)
def test_wrong_lengths_are_errors(fault: tuple[dict[str, Any], str]):
    changed, message = fault
    layer, (tokens, positions, _) = build(Case("squared_relu", "fourier")), draw_ragged()
    with pytest.raises(ValueError, match=message):
        layer(tokens, positions=positions, **changed)


PACKED = (5, 1, 7, 5, 3)
STARTS = torch.tensor([0, *itertools.accumulate(PACKED)])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"kernel": "softmax", "relative": "shaw"},
        {"kernel": "positive", "relative": None},
    ],
    ids=["squared_relu-rotary", "causal", "softmax-shaw", "positive"],
)
def test_packed_sequences_are_independent(options: dict[str, Any]):
    torch.manual_seed(0)
    block = TransformerBlock(8, 2, num_axes=1, **options).double()
    tokens = torch.randn(2, sum(PACKED), 8, dtype=torch.float64, requires_grad=True)
    packed_positions = (
        None
        if "relative" in options and options["relative"] is None
        else torch.randn(2, sum(PACKED), 1).double()
    )
    parts = (
        [None] * len(PACKED) if packed_positions is None else packed_positions.split(PACKED, dim=1)
    )
    alone = [
        block(sequence, positions=sequence_positions)
        for sequence, sequence_positions in zip(tokens.split(PACKED, dim=1), parts, strict=True)
    ]
    packed = block(tokens, positions=packed_positions, cu_seqlens=STARTS)
    gradients, expected = (
        [output, *grad((output * tokens.detach().cos()).sum(), [tokens, *block.parameters()])]
        for output in (packed, torch.cat(alone, dim=1))
    )
    for gradient, target in zip(gradients, expected, strict=True):
        assert relative_error(gradient, target) <= 1e-12


@pytest.mark.parametrize(
    ("starts", "options", "message"),
    [
        ([0, 5, 5, 21], {}, "cu_seqlens must be increasing from 0 to the number of tokens, 21"),
        ([0, 5, 20], {}, "cu_seqlens must be increasing"),
        ([0, 21], {"grid": Grid(21)}, "grid must be None with cu_seqlens.*Give positions"),
        ([0, 21], {"num_prefix_tokens": 1}, r"num_prefix_tokens must be .*got a value"),
        ([0, 21], {"key_mask": torch.ones(1, 21).bool()}, r"key_mask must be .*got a value"),
    ],
)
def test_wrong_packed_sequences_are_errors(
    starts: list[int], options: dict[str, Any], message: str
):
    tokens = torch.randn(1, 2, 21, 4)
    with pytest.raises(ValueError, match=message):
        attention(tokens, tokens, tokens, kernel="relu", cu_seqlens=torch.tensor(starts), **options)
