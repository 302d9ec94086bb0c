import pytest
import torch
from tests.contracts.cases import draw_inputs, draw_mask, relative_change
from torch import Tensor

from teka import Grid
from teka.functional import Clipped
from teka.functional.backend.linear import causal_rings, linear

NUM_TOKENS = 23


def draw(num_features: int, max_distance: int) -> list[Tensor]:
    """Query, features of queries and keys, s, values and embeddings."""
    generator = torch.Generator().manual_seed(num_features)
    query, _, value = draw_inputs(NUM_TOKENS)
    shape = query.shape[:-1]
    features = [torch.rand(*shape, num_features, generator=generator, dtype=torch.float64) for _ in range(2)]
    log_scale = 5 * torch.randn(shape, generator=generator, dtype=torch.float64)
    embedding = torch.randn(max_distance + 1, query.shape[-1], generator=generator, dtype=torch.float64)
    return [query, *features, log_scale, value, embedding]


def attend(inputs: list[Tensor], mask: Tensor | None, *, scaled: bool) -> Tensor:
    query, query_features, key_features, log_scale, value, embedding = inputs
    if mask is not None:
        key_features = key_features.masked_fill(~mask[:, None, :, None], 0.0)
    return causal_rings(
        Clipped(embedding).log_rings(query, scale=0.4),
        query_features,
        key_features,
        log_scale if scaled else None,
        value,
        Grid(NUM_TOKENS),
        key_mask=mask,
    ).divide(nonnegative=True)


def by_pairs(inputs: list[Tensor], mask: Tensor | None, *, scaled: bool) -> Tensor:
    query, query_features, key_features, log_scale, value, embedding = inputs
    offsets = Grid(NUM_TOKENS).offsets(dtype=torch.float64)
    log_factor = Clipped(embedding).log_kernel(query, offsets, scale=0.4)
    if scaled:
        log_factor = log_factor + log_scale[:, :, None]
    keep = torch.ones(NUM_TOKENS, NUM_TOKENS, dtype=torch.bool).tril()[None, None]
    keep = keep if mask is None else keep & mask[:, None, None]
    weights = (query_features @ key_features.transpose(-2, -1) * torch.exp(log_factor)).masked_fill(~keep, 0.0)
    return weights @ value / weights.sum(dim=-1, keepdim=True).clamp_min(1e-300)


@pytest.mark.parametrize("chunk", [4, 128])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(("num_features", "max_distance"), [(1, 5), (3, 1), (7, 4), (3, 40)])
def test_values_and_gradients_are_those_of_all_pairs(
    num_features: int, max_distance: int, scaled: bool, masked: bool, chunk: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(linear, "CHUNK_TOKENS", chunk)
    mask = draw_mask(2, NUM_TOKENS) if masked else None
    inputs = [tensor.requires_grad_() for tensor in draw(num_features, max_distance)]
    outputs = [function(inputs, mask, scaled=scaled) for function in (by_pairs, attend)]
    gradients = [torch.autograd.grad(output.sin().sum(), inputs, materialize_grads=True) for output in outputs]
    for found, expected in zip([outputs[1], *gradients[1]], [outputs[0], *gradients[0]], strict=True):
        assert relative_change(found, expected) < 1e-11


@pytest.mark.parametrize("place", range(2, 5))
def test_what_comes_later_changes_no_bit_of_an_earlier_row(place: int):
    inputs = draw(3, 4)
    before = attend(inputs, None, scaled=True)
    inputs[place] = inputs[place].clone()
    inputs[place][:, :, 11:] *= 1e3
    assert torch.equal(attend(inputs, None, scaled=True)[:, :, :11], before[:, :, :11])


def test_scales_of_any_size_stay_finite():
    inputs = draw(3, 4)
    inputs[3] = 400 * inputs[3]
    assert torch.isfinite(attend(inputs, None, scaled=True)).all()


@pytest.mark.parametrize("grid", [Grid((4, 5)), Grid((20,), periodic=True)], ids=str)
def test_more_axes_or_an_axis_that_wraps_have_no_order_of_time(grid: Grid):
    one = torch.ones(1, 1, 20, 3)
    with pytest.raises(ValueError, match="grid is Grid"):
        causal_rings(torch.ones(1, 1, 20, 4), one, one, None, one, grid, key_mask=None)
