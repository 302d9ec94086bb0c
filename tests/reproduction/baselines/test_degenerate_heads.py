"""The two rules for heads that have degenerated."""

import math
from typing import Any

import pytest
import torch

from reproduction.baselines import SelfAttentionNetwork
from reproduction.baselines.degenerate_heads import DegenerateHeads, degenerate_heads, heads_table
from teka.nn import RelativeKernel
from teka.nn.relative import inverse_softplus


def build(**options: Any) -> SelfAttentionNetwork:
    torch.manual_seed(0)
    options = {
        "dim": 6,
        "depth": 2,
        "heads": (3, 5),
        "position": "generalized_quadratic",
        **options,
    }
    return SelfAttentionNetwork(8, 1, 3, **options)


def set_eigenvalues(
    model: SelfAttentionNetwork, layer: int, head: int, *eigenvalues: float
) -> None:
    """Give a head's Σ⁻¹ these eigenvalues, along oblique axes."""
    relative = model.attentions()[layer].relative
    assert isinstance(relative, RelativeKernel)
    left, right = (torch.linalg.qr(torch.randn(2, 2).double()).Q for _ in range(2))
    factor = left @ torch.tensor(eigenvalues).double().sqrt().diag() @ right
    with torch.no_grad():
        relative.precision_factor[head] = factor.to(relative.precision_factor.dtype)


def test_a_new_network_has_none():
    for position in ("quadratic", "generalized_quadratic"):
        layers = degenerate_heads(build(position=position))
        assert [(one.num_heads, one.everywhere, one.thin) for one in layers] == [
            (3, (), ()),
            (5, (), ()),
        ]


def test_flat_heads_and_thin_heads_are_found_where_they_are():
    model = build().double()
    set_eigenvalues(model, 0, 1, 9e-6, 8e-6)
    set_eigenvalues(model, 0, 2, 1.1e-5, 8e-6)
    set_eigenvalues(model, 1, 0, 1.01e5, 1.0)
    set_eigenvalues(model, 1, 3, 0.99e5, 1.0)
    set_eigenvalues(model, 1, 4, 1e-6, 1e-12)
    first, second = degenerate_heads(model)
    assert (first.everywhere, first.thin, first.prunable) == ((1,), (), (1,))
    assert (second.everywhere, second.thin, second.prunable) == ((4,), (0, 4), (0, 4))
    assert first.largest_precision[1:] == pytest.approx((9e-6, 1.1e-5))
    assert second.condition_number[0] == pytest.approx(1.01e5)
    assert second.condition_number[4] == pytest.approx(1e6)


def test_thresholds_are_arguments():
    model = build().double()
    set_eigenvalues(model, 0, 1, 2000.0, 1.0)
    set_eigenvalues(model, 1, 2, 0.01, 0.01)
    assert [one.prunable for one in degenerate_heads(model)] == [(), ()]
    found = degenerate_heads(model, condition_number=1000.0, largest_precision=0.1)
    assert [one.prunable for one in found] == [(1,), (2,)]


def test_of_round_gaussians_the_first_rule_alone_holds():
    model = build(position="quadratic").double()
    relative = model.attentions()[1].relative
    assert isinstance(relative, RelativeKernel)
    with torch.no_grad():
        relative.raw_precision[2:4] = inverse_softplus(torch.tensor([4.9e-6, 5.1e-6]).double())
    _, second = degenerate_heads(model, condition_number=1.0)
    assert (second.everywhere, second.thin) == ((2,), ())
    assert second.largest_precision[2:4] == pytest.approx((9.8e-6, 1.02e-5))


def test_a_singular_matrix_has_an_infinite_condition_number_and_a_matrix_of_zeros_is_round():
    model = build().double()
    set_eigenvalues(model, 0, 0, 0.0, 0.0)
    relative = model.attentions()[0].relative
    assert isinstance(relative, RelativeKernel)
    with torch.no_grad():
        relative.precision_factor[1] = torch.tensor([[2.0, 0.0], [0.0, 0.0]])
    first, _ = degenerate_heads(model)
    assert first.condition_number[:2] == (1.0, math.inf)
    assert (first.everywhere, first.thin) == ((0,), (1,))


def test_where_all_have_degenerated_the_roundest_that_looks_somewhere_is_spared():
    layer = DegenerateHeads((1.0, 1.0, 1e-7), (2e5, 1e6, 1.0), everywhere=(2,), thin=(0, 1))
    assert layer.prunable == (1, 2)
    flat = DegenerateHeads((1e-7, 1e-7), (3.0, 2.0), everywhere=(0, 1), thin=())
    assert flat.prunable == (0,)


def test_the_table_counts_the_heads_of_every_layer():
    layers = [
        DegenerateHeads((1.0,) * 3, (2e5, 1.0, 1.0), everywhere=(), thin=(0,)),
        DegenerateHeads((1e-7,) * 2, (1e6, 1.0), everywhere=(0, 1), thin=(0,)),
    ]
    assert [line.split() for line in heads_table(layers).splitlines()] == [
        ["layer", "heads", "everywhere", "thin", "pruned", "left"],
        ["1", "3", "0", "1", "1", "2"],
        ["2", "2", "2", "1", "1", "1"],
        ["all", "5", "2", "2", "2", "3"],
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"position": "table"}, r"relative kernel must be .*got 'table'"),
        ({"content": "softmax"}, "heads attend by position alone"),
    ],
)
def test_a_network_of_which_the_rules_say_nothing_is_an_error(options, message):
    with pytest.raises(ValueError, match=message):
        degenerate_heads(build(**options))


@pytest.mark.parametrize(
    ("argument", "value"),
    [("largest_precision", -1.0), ("condition_number", 0.5), ("condition_number", math.nan)],
)
def test_a_threshold_that_cannot_be_is_an_error(argument, value):
    with pytest.raises(ValueError, match=argument):
        degenerate_heads(build(), **{argument: value})
