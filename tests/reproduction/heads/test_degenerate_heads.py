import math
from typing import Any

import pytest
import torch

from reproduction.baselines import SelfAttentionNetwork
from reproduction.heads.prune import find_degenerate_heads
from teka.nn import LearnedRelativeKernel
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
    relative = model.attention_layers()[layer].relative
    assert isinstance(relative, LearnedRelativeKernel)
    left, right = (torch.linalg.qr(torch.randn(2, 2).double()).Q for _ in range(2))
    factor = left @ torch.tensor(eigenvalues).double().sqrt().diag() @ right
    with torch.no_grad():
        relative.precision_factor[head] = factor.to(relative.precision_factor.dtype)


def find(model: SelfAttentionNetwork, column: str, **thresholds: float) -> list[list[int]]:
    """Return the heads of every layer that a column is true of."""
    table = find_degenerate_heads(model, **thresholds)
    return [layer.to_numpy().nonzero()[0].tolist() for _, layer in table[column].groupby("layer")]


def test_a_new_network_has_no_degenerate_heads():
    for position in ("quadratic", "generalized_quadratic"):
        table = find_degenerate_heads(build(position=position))
        assert table.index.tolist() == [(1, 0), (1, 1), (1, 2), *((2, head) for head in range(5))]
        assert not table[["everywhere", "thin", "pruned"]].to_numpy().any()


def test_flat_heads_and_thin_heads_are_found():
    model = build().double()
    set_eigenvalues(model, 0, 1, 9e-6, 8e-6)
    set_eigenvalues(model, 0, 2, 1.1e-5, 8e-6)
    set_eigenvalues(model, 1, 0, 1.01e5, 1.0)
    set_eigenvalues(model, 1, 3, 0.99e5, 1.0)
    set_eigenvalues(model, 1, 4, 1e-6, 1e-12)
    assert find(model, "everywhere") == [[1], [4]]
    assert find(model, "thin") == [[], [0, 4]]
    assert find(model, "pruned") == [[1], [0, 4]]
    table = find_degenerate_heads(model)
    assert table.largest_precision[1].tolist()[1:] == pytest.approx([9e-6, 1.1e-5])
    assert table.condition_number[2][0] == pytest.approx(1.01e5)
    assert table.condition_number[2][4] == pytest.approx(1e6)


def test_the_threshold_of_thin_heads_is_an_argument():
    model = build().double()
    set_eigenvalues(model, 0, 1, 2000.0, 1.0)
    assert find(model, "pruned") == [[], []]
    assert find(model, "pruned", condition_number=1000.0) == [[1], []]


def test_round_gaussians_can_only_attend_everywhere():
    model = build(position="quadratic").double()
    relative = model.attention_layers()[1].relative
    assert isinstance(relative, LearnedRelativeKernel)
    with torch.no_grad():
        relative.raw_precision[2:4] = inverse_softplus(torch.tensor([4.9e-6, 5.1e-6]).double())
    assert find(model, "everywhere", condition_number=1.0) == [[], [2]]
    assert find(model, "thin", condition_number=1.0) == [[], []]
    precision = find_degenerate_heads(model).largest_precision[2].tolist()
    assert precision[2:4] == pytest.approx([9.8e-6, 1.02e-5])


def test_condition_number_of_singular_and_zero_matrices():
    model = build().double()
    set_eigenvalues(model, 0, 0, 0.0, 0.0)
    relative = model.attention_layers()[0].relative
    assert isinstance(relative, LearnedRelativeKernel)
    with torch.no_grad():
        relative.precision_factor[1] = torch.tensor([[2.0, 0.0], [0.0, 0.0]])
    assert find_degenerate_heads(model).condition_number[1].tolist()[:2] == [1.0, math.inf]
    assert find(model, "everywhere") == [[0], []]
    assert find(model, "thin") == [[1], []]


def test_the_roundest_head_stays_if_all_heads_of_a_layer_have_degenerated():
    model = build(heads=(3, 2)).double()
    for head, eigenvalues in enumerate([(2e5, 1.0), (1e6, 1.0), (1e-7, 1e-7)]):
        set_eigenvalues(model, 0, head, *eigenvalues)
    set_eigenvalues(model, 1, 0, 3e-7, 1e-7)
    set_eigenvalues(model, 1, 1, 2e-7, 1e-7)
    assert find(model, "pruned") == [[1, 2], [0]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"position": "table"}, r"relative kernel must be .*got 'table'"),
        ({"content": "softmax"}, "heads attend by position alone"),
    ],
)
def test_heads_that_are_not_gaussians_of_position_are_an_error(options, message):
    with pytest.raises(ValueError, match=message):
        find_degenerate_heads(build(**options))


@pytest.mark.parametrize("threshold", [0.5, math.nan])
def test_an_invalid_threshold_is_an_error(threshold):
    with pytest.raises(ValueError, match="condition_number"):
        find_degenerate_heads(build(), threshold)
