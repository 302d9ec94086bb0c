import itertools

import pytest
import torch
from torch import Tensor
from torch.autograd import grad

from teka import Grid
from teka.functional import ClippedDistanceBias, FeatureKernel, attention
from teka.functional.backends import linear
from teka.functional.backends.attention_sums import (
    AttentionFeatures,
    LinearAttentionInputs,
    append_ones,
)
from teka.functional.backends.linear import CHUNK_TOKENS, attention_sums_without_positions
from teka.functional.backends.rings import causal_ring_attention_sums
from teka.functional.kernels import make_kernel
from tests.contracts.cases import draw_inputs, draw_mask, relative_error


def test_it_is_the_sum_over_keys_of_the_features_products():
    generator = torch.Generator().manual_seed(0)
    query, key = (
        torch.rand(2, 3, size, 7, dtype=torch.float64, generator=generator) for size in (4, 6)
    )
    value = torch.randn(2, 3, 6, 5, dtype=torch.float64, generator=generator)
    sums = attention_sums_without_positions(LinearAttentionInputs(query, query, key, value))
    numerator, denominator = torch.zeros(2, 3, 4, 5).double(), torch.zeros(2, 3, 4).double()
    for i in range(4):
        for j in range(6):
            weight = (query[:, :, i] * key[:, :, j]).sum(dim=-1)
            numerator[:, :, i] += weight[..., None] * value[:, :, j]
            denominator[:, :, i] += weight
    assert relative_error(sums.numerator, numerator) < 1e-12
    assert relative_error(sums.denominator, denominator) < 1e-12


KERNELS = ("squared_relu", "positive", "optimal", "hyperbolic", "elu", "taylor2", "constant")
LENGTHS = (1, 8, 9, 61)


@pytest.fixture(autouse=True)
def blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short chunks, few of which are computed at once."""
    monkeypatch.setattr(linear, "CHUNK_TOKENS", 8)
    monkeypatch.setattr(linear, "BLOCK_CHUNKS", 3)


def both(
    inputs: list[Tensor], kernel: str, relative: str | None, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    grid = None if relative is None else Grid(inputs[0].shape[2])
    fast, dense = (
        attention(
            *inputs,
            kernel=kernel,
            relative=relative,
            grid=grid,
            key_mask=mask,
            is_causal=True,
            backend=backend,
        )
        for backend in ("linear", "dense")
    )
    return fast, dense


@pytest.mark.parametrize("relative", [None, "fourier", "rotary"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_chunks_give_what_every_pair_gives(kernel: str, relative: str | None):
    if (kernel, relative) == ("constant", "rotary"):
        relative = None  # one feature cannot be rotated
    for num_tokens in LENGTHS:
        fast, dense = both(draw_inputs(num_tokens), kernel, relative)
        assert relative_error(fast, dense) < 1e-10, num_tokens


@pytest.mark.parametrize("relative", [None, "fourier", "rotary"])
@pytest.mark.parametrize("kernel", ["squared_relu", "positive"])
def test_gradients_are_those_of_every_pair(kernel: str, relative: str | None):
    inputs = [tensor.requires_grad_() for tensor in draw_inputs(61)]
    fast, dense = both(inputs, kernel, relative)
    direction = torch.randn(
        fast.shape, dtype=fast.dtype, generator=torch.Generator().manual_seed(0)
    )
    ours, theirs = (grad((output * direction).sum(), inputs) for output in (fast, dense))
    for mine, true in zip(ours, theirs, strict=True):
        assert relative_error(mine, true) < 1e-10


@pytest.mark.parametrize("relative", [None, "fourier", "rotary"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_dropped_keys_count_nowhere_and_a_query_without_keys_gets_zero(
    kernel: str, relative: str | None
):
    if (kernel, relative) == ("constant", "rotary"):
        relative = None
    query, key, value = draw_inputs(140)
    mask = torch.rand(2, 140, generator=torch.Generator().manual_seed(0)) < 0.5
    mask[0, :131] = False  # a whole chunk and more without any key
    mask[1, :3] = False
    mask[:, 139] = True
    fast, dense = both([query, key, value], kernel, relative, mask)
    assert relative_error(fast, dense) < 1e-10
    assert not fast[0, :, :131].any()
    assert not fast[1, :, :3].any()
    assert fast[0, :, 139].all()
    hostile = torch.where(mask[:, None, :, None], key, 1e4)
    other = torch.where(mask[:, None, :, None], value, -1e4)
    # With rotary the running maximum is that of the kept keys too.
    assert relative_error(both([query, hostile, other], kernel, relative, mask)[0], fast) < 1e-12


def one_maximum_over_all_keys(
    query: Tensor, key: Tensor, value: Tensor, kernel: FeatureKernel
) -> Tensor:
    """A twin as in earlier code: features over one maximum of the whole sequence, and a cumulative sum of them."""
    features = kernel.query_features(query, scale=0.5)
    sums = torch.cumsum(
        kernel.key_features(key, scale=0.5)[..., None] * append_ones(value)[..., None, :], dim=2
    )
    mixed = (features[..., None, :] @ sums)[..., 0, :]
    return mixed[..., :-1] / mixed[..., -1:].clamp_min(torch.finfo(mixed.dtype).tiny)


def running_maximum(query: Tensor, key: Tensor, value: Tensor, kernel: FeatureKernel) -> Tensor:
    return attention(query, key, value, kernel=kernel, is_causal=True, scale=0.5, backend="linear")


def with_other_future(key: Tensor, past: int) -> tuple[Tensor, ...]:
    """Keys whose future is 10³ times as long, and keys whose future is at 0, where positive features are largest."""
    return tuple(
        torch.cat([key[:, :, :past], factor * key[:, :, past:]], dim=2) for factor in (1e3, 0.0)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [1.0, 10.0])
def test_no_bit_of_the_past_changes_when_future_keys_do(length: float, dtype: torch.dtype):
    query, key, value = draw_inputs(257, dtype=dtype)
    for name in KERNELS:
        kernel = make_kernel(name, 5)
        assert isinstance(kernel, FeatureKernel)
        before = running_maximum(query, length * key, value, kernel)
        assert before.isfinite().all()
        for past in (1, 77, CHUNK_TOKENS, 200):
            for other in with_other_future(length * key, past):
                after = running_maximum(query, other, value, kernel)
                assert torch.equal(after[:, :, :past], before[:, :, :past]), (name, past)


def test_one_maximum_over_all_keys_fails_that_check():
    query, key, value = draw_inputs(257, dtype=torch.float32)
    kernel = make_kernel("positive", 5)
    assert isinstance(kernel, FeatureKernel)
    broken = one_maximum_over_all_keys(query, key, value, kernel)
    assert (
        relative_error(broken, running_maximum(query, key, value, kernel)) < 1e-4
    )  # the same formula
    # Where keys are long, the maximum of a later one leaves nothing of those before.
    broken = one_maximum_over_all_keys(query, 10 * key, value, kernel)
    _, other = with_other_future(10 * key, 77)
    after = one_maximum_over_all_keys(query, other, value, kernel)
    assert relative_error(after[:, :, :77], broken[:, :, :77]) > 0.05


@pytest.mark.parametrize("has_denominator", [False, True])
def test_tokens_one_by_one_have_the_sums_of_chunks(has_denominator: bool):
    query, key, value = draw_inputs(21)
    log_scale = 5 * query[..., 0]
    query, key = query.abs(), key.abs()
    terms = ((0.3, query[..., :3]),), ((0.3, key[..., :3]),)
    vectors = [
        AttentionFeatures(tensor, term if has_denominator else ())
        for tensor, term in zip((query, key), terms, strict=True)
    ]
    whole = linear.causal_attention_sums(*vectors, value, log_scale).normalize(nonnegative=True)
    state, outputs = None, []
    for token in range(21):
        query_token, key_token = (
            AttentionFeatures(
                side.numerator[:, :, token : token + 1],
                tuple((weight, term[:, :, token : token + 1]) for weight, term in side.denominator),
            )
            for side in vectors
        )
        tokens = LinearAttentionInputs(
            query_token.numerator,
            query_token.numerator,
            key_token.numerator,
            value[:, :, token : token + 1],
            log_scale[:, :, token : token + 1],
        )
        sums, state = linear.decoding_step(tokens, query_token, key_token, state)
        outputs.append(sums.normalize(nonnegative=True))
    assert relative_error(torch.cat(outputs, dim=2), whole) < 1e-12


def test_float32_keys_of_any_size_leave_everything_finite():
    query, key, value = draw_inputs(300, dtype=torch.float32)
    key = key * torch.logspace(4, -4, 300)[:, None]
    for name in KERNELS:
        inputs = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
        output = attention(*inputs, kernel=name, is_causal=True, backend="linear")
        assert output.isfinite().all()
        assert all(
            part.isfinite().all()
            for part in grad(output.sum(), inputs, allow_unused=True)
            if part is not None
        )


NUM_TOKENS = 23


def draw(num_features: int, max_distance: int) -> list[Tensor]:
    """Query, features of queries and keys, s, values and embeddings."""
    generator = torch.Generator().manual_seed(num_features)
    query, _, value = draw_inputs(NUM_TOKENS)
    shape = query.shape[:-1]
    features = [
        torch.rand(*shape, num_features, generator=generator, dtype=torch.float64) for _ in range(2)
    ]
    log_scale = 5 * torch.randn(shape, generator=generator, dtype=torch.float64)
    embedding = torch.randn(
        max_distance + 1, query.shape[-1], generator=generator, dtype=torch.float64
    )
    return [query, *features, log_scale, value, embedding]


def attend(inputs: list[Tensor], mask: Tensor | None, *, scaled: bool) -> Tensor:
    query, query_features, key_features, log_scale, value, embedding = inputs
    if mask is not None:
        key_features = key_features.masked_fill(~mask[:, None, :, None], 0.0)
    tokens = LinearAttentionInputs(
        query, query_features, key_features, value, log_scale if scaled else None, mask
    )
    log_rings = ClippedDistanceBias(embedding).log_rings(query, scale=0.4)
    return causal_ring_attention_sums(log_rings, tokens, Grid(NUM_TOKENS)).normalize(
        nonnegative=True
    )


def by_pairs(inputs: list[Tensor], mask: Tensor | None, *, scaled: bool) -> Tensor:
    query, query_features, key_features, log_scale, value, embedding = inputs
    offsets = Grid(NUM_TOKENS).offsets(dtype=torch.float64)
    log_factor = ClippedDistanceBias(embedding).log_weights(query, offsets, scale=0.4)
    if scaled:
        log_factor = log_factor + log_scale[:, :, None]
    keep = torch.ones(NUM_TOKENS, NUM_TOKENS, dtype=torch.bool).tril()[None, None]
    keep = keep if mask is None else keep & mask[:, None, None]
    weights = (query_features @ key_features.transpose(-2, -1) * torch.exp(log_factor)).masked_fill(
        ~keep, 0.0
    )
    return weights @ value / weights.sum(dim=-1, keepdim=True).clamp_min(1e-300)


@pytest.mark.parametrize("chunk", [4, 128])
@pytest.mark.parametrize(("num_features", "max_distance"), [(1, 5), (3, 1), (7, 4), (3, 40)])
def test_values_and_gradients_are_those_of_all_pairs(
    num_features: int, max_distance: int, chunk: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(linear, "CHUNK_TOKENS", chunk)
    for scaled, mask in itertools.product((False, True), (None, draw_mask(2, NUM_TOKENS))):
        inputs = [tensor.requires_grad_() for tensor in draw(num_features, max_distance)]
        outputs = [function(inputs, mask, scaled=scaled) for function in (by_pairs, attend)]
        gradients = [
            torch.autograd.grad(output.sin().sum(), inputs, materialize_grads=True)
            for output in outputs
        ]
        for found, expected in zip(
            [outputs[1], *gradients[1]], [outputs[0], *gradients[0]], strict=True
        ):
            assert relative_error(found, expected) < 1e-11, (scaled, mask)


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
    with pytest.raises(ValueError, match=r"grid must be .*got Grid"):
        causal_ring_attention_sums(
            torch.ones(1, 1, 20, 4), LinearAttentionInputs(one, one, one, one), grid
        )
