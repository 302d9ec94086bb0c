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
from teka.functional.kernels import make_content_kernel
from tests.contracts.cases import draw_inputs, draw_mask, relative_error


def test_attention_sums_equal_loops_over_queries_and_keys():
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
def use_short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use short chunks, and compute only a few of them at once."""
    monkeypatch.setattr(linear, "CHUNK_TOKENS", 8)
    monkeypatch.setattr(linear, "BLOCK_CHUNKS", 3)


def linear_and_dense(
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
def test_chunks_equal_dense(kernel: str, relative: str | None):
    if (kernel, relative) == ("constant", "rotary"):
        relative = None  # one feature cannot be rotated
    for num_tokens in LENGTHS:
        fast, dense = linear_and_dense(draw_inputs(num_tokens), kernel, relative)
        assert relative_error(fast, dense) < 1e-10, num_tokens


@pytest.mark.parametrize("relative", [None, "fourier", "rotary"])
@pytest.mark.parametrize("kernel", ["squared_relu", "positive"])
def test_gradients_equal_dense(kernel: str, relative: str | None):
    inputs = [tensor.requires_grad_() for tensor in draw_inputs(61)]
    fast, dense = linear_and_dense(inputs, kernel, relative)
    direction = torch.randn(
        fast.shape, dtype=fast.dtype, generator=torch.Generator().manual_seed(0)
    )
    linear_gradients, dense_gradients = (
        grad((output * direction).sum(), inputs) for output in (fast, dense)
    )
    for result, expected in zip(linear_gradients, dense_gradients, strict=True):
        assert relative_error(result, expected) < 1e-10


@pytest.mark.parametrize("relative", [None, "fourier", "rotary"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_masked_keys_have_no_effect_and_queries_without_keys_give_0(
    kernel: str, relative: str | None
):
    if (kernel, relative) == ("constant", "rotary"):
        relative = None
    query, key, value = draw_inputs(140)
    mask = torch.rand(2, 140, generator=torch.Generator().manual_seed(0)) < 0.5
    mask[0, :131] = False  # more than a whole chunk without keys
    mask[1, :3] = False
    mask[:, 139] = True
    fast, dense = linear_and_dense([query, key, value], kernel, relative, mask)
    assert relative_error(fast, dense) < 1e-10
    assert not fast[0, :, :131].any()
    assert not fast[1, :, :3].any()
    assert fast[0, :, 139].all()
    hostile = torch.where(mask[:, None, :, None], key, 1e4)
    other = torch.where(mask[:, None, :, None], value, -1e4)
    # With rotary, too, the running maximum is the maximum of the kept keys.
    assert (
        relative_error(linear_and_dense([query, hostile, other], kernel, relative, mask)[0], fast)
        < 1e-12
    )


def attend_with_global_maximum(
    query: Tensor, key: Tensor, value: Tensor, kernel: FeatureKernel
) -> Tensor:
    """Compute attention with one maximum over all keys, which depends on future keys."""
    features = kernel.query_features(query, scale=0.5)
    sums = torch.cumsum(
        kernel.key_features(key, scale=0.5)[..., None] * append_ones(value)[..., None, :], dim=2
    )
    mixed = (features[..., None, :] @ sums)[..., 0, :]
    return mixed[..., :-1] / mixed[..., -1:].clamp_min(torch.finfo(mixed.dtype).tiny)


def attend_with_running_maximum(
    query: Tensor, key: Tensor, value: Tensor, kernel: FeatureKernel
) -> Tensor:
    return attention(query, key, value, kernel=kernel, is_causal=True, scale=0.5, backend="linear")


def change_future_keys(key: Tensor, past: int) -> tuple[Tensor, ...]:
    """Return keys with a future of 10³ times the length, and keys with a future of zeros.

    Positive features are largest for zeros.
    """
    return tuple(
        torch.cat([key[:, :, :past], factor * key[:, :, past:]], dim=2) for factor in (1e3, 0.0)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [1.0, 10.0])
def test_future_keys_change_no_bit_of_past_outputs(length: float, dtype: torch.dtype):
    query, key, value = draw_inputs(257, dtype=dtype)
    for name in KERNELS:
        kernel = make_content_kernel(name, 5)
        assert isinstance(kernel, FeatureKernel)
        before = attend_with_running_maximum(query, length * key, value, kernel)
        assert before.isfinite().all()
        for past in (1, 77, CHUNK_TOKENS, 200):
            for other in change_future_keys(length * key, past):
                after = attend_with_running_maximum(query, other, value, kernel)
                assert torch.equal(after[:, :, :past], before[:, :, :past]), (name, past)


def test_global_maximum_would_leak_future_keys():
    query, key, value = draw_inputs(257, dtype=torch.float32)
    kernel = make_content_kernel("positive", 5)
    assert isinstance(kernel, FeatureKernel)
    broken = attend_with_global_maximum(query, key, value, kernel)
    assert (
        relative_error(broken, attend_with_running_maximum(query, key, value, kernel)) < 1e-4
    )  # the same formula
    # With long keys, the maximum of a later key makes the weights of earlier keys vanish.
    broken = attend_with_global_maximum(query, 10 * key, value, kernel)
    _, other = change_future_keys(10 * key, 77)
    after = attend_with_global_maximum(query, other, value, kernel)
    assert relative_error(after[:, :, :77], broken[:, :, :77]) > 0.05


@pytest.mark.parametrize("has_denominator", [False, True])
def test_decoding_steps_equal_the_whole_sequence(has_denominator: bool):
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
        sums, state = linear.decode_linear_attention(tokens, query_token, key_token, state)
        outputs.append(sums.normalize(nonnegative=True))
    assert relative_error(torch.cat(outputs, dim=2), whole) < 1e-12


def test_float32_keys_of_any_size_give_finite_outputs_and_gradients():
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


def draw_ring_inputs(num_features: int, max_distance: int) -> list[Tensor]:
    """Return queries, features of queries and keys, log scales, values and embeddings."""
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


def ring_attention(inputs: list[Tensor], mask: Tensor | None, *, scaled: bool) -> Tensor:
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


def dense_ring_attention(inputs: list[Tensor], mask: Tensor | None, *, scaled: bool) -> Tensor:
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
def test_ring_attention_and_gradients_equal_dense(
    num_features: int, max_distance: int, chunk: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(linear, "CHUNK_TOKENS", chunk)
    for scaled, mask in itertools.product((False, True), (None, draw_mask(2, NUM_TOKENS))):
        inputs = [
            tensor.requires_grad_() for tensor in draw_ring_inputs(num_features, max_distance)
        ]
        outputs = [
            function(inputs, mask, scaled=scaled)
            for function in (dense_ring_attention, ring_attention)
        ]
        gradients = [
            torch.autograd.grad(output.sin().sum(), inputs, materialize_grads=True)
            for output in outputs
        ]
        for found, expected in zip(
            [outputs[1], *gradients[1]], [outputs[0], *gradients[0]], strict=True
        ):
            assert relative_error(found, expected) < 1e-11, (scaled, mask)


@pytest.mark.parametrize("index", range(2, 5))
def test_later_tokens_change_no_bit_of_earlier_ring_outputs(index: int):
    inputs = draw_ring_inputs(3, 4)
    before = ring_attention(inputs, None, scaled=True)
    inputs[index] = inputs[index].clone()
    inputs[index][:, :, 11:] *= 1e3
    assert torch.equal(ring_attention(inputs, None, scaled=True)[:, :, :11], before[:, :, :11])


def test_ring_attention_is_finite_for_large_scales():
    inputs = draw_ring_inputs(3, 4)
    inputs[3] = 400 * inputs[3]
    assert torch.isfinite(ring_attention(inputs, None, scaled=True)).all()


@pytest.mark.parametrize("grid", [Grid((4, 5)), Grid((20,), periodic=True)], ids=str)
def test_causal_rings_need_one_bounded_axis(grid: Grid):
    one = torch.ones(1, 1, 20, 3)
    with pytest.raises(ValueError, match=r"grid must be .*got Grid"):
        causal_ring_attention_sums(
            torch.ones(1, 1, 20, 4), LinearAttentionInputs(one, one, one, one), grid
        )
