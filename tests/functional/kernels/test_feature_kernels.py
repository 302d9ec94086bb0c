import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from teka import Grid
from teka.functional import (
    Constant,
    Elu,
    Hedgehog,
    RelativeKernel,
    Rotary,
    Softmax,
    Taylor2,
    attention,
    decode,
)
from teka.functional.kernels import make_content_kernel
from teka.functional.kernels.content_kernel import LOWEST_EXPONENT
from teka.functional.kernels.feature_kernels import taylor_features
from teka.functional.positions import Positions
from tests.contracts.cases import (
    build_relative,
    draw_inputs,
    draw_mask,
    reference_attention,
    relative_error,
    with_leaves,
)
from tests.functional.kernels.fitted_kernels import (
    attention_matrix,
    draw_vectors,
    fit,
    softmax_error,
)


def test_softmax_weights_equal_formula():
    query, key, _ = draw_inputs(6)
    log_relative = torch.randn(
        2, 3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    mask = draw_mask(2, 6)
    weights = Softmax().weights(query, key, scale=0.4, log_relative=log_relative, key_mask=mask)
    for batch in range(2):
        for head in range(3):
            for i in range(6):
                row = [
                    math.exp(
                        0.4 * float(query[batch, head, i] @ key[batch, head, j])
                        + float(log_relative[batch, head, i, j])
                    )
                    if mask[batch, j]
                    else 0.0
                    for j in range(6)
                ]
                expected = torch.tensor(row, dtype=torch.float64) / sum(row)
                assert relative_error(weights[batch, head, i], expected) < 1e-12


def test_softmax_does_not_overflow():
    query, key, _ = draw_inputs(6, scale=1e4)
    assert torch.isfinite(Softmax().weights(query, key, scale=1.0)).all()


@pytest.mark.parametrize("key_shift", ["none", "mean"])
def test_taylor2_weights_equal_formula(key_shift: Any):
    query, key, _ = draw_inputs(6)
    mask = draw_mask(2, 6)
    kernel = fit(Taylor2(key_shift), query, key, scale=0.4, key_mask=mask)
    weights = kernel.weights(query, key, scale=0.4, key_mask=mask)
    for batch in range(2):
        for head in range(3):
            mean = key[batch, head, mask[batch]].mean(dim=0) if key_shift == "mean" else 0.0
            for i in range(6):
                for j in range(6):
                    t = 0.4 * float(query[batch, head, i] @ (key[batch, head, j] - mean))
                    expected = 1 + t + t**2 / 2 if mask[batch, j] else 0.0
                    assert float(weights[batch, head, i, j]) == pytest.approx(expected, rel=1e-12)


@given(dim=st.integers(1, 9), tokens=st.integers(1, 5), seed=st.integers(0, 2**32))
def test_taylor2_feature_products_equal_weights(dim: int, tokens: int, seed: int):
    query, key = draw_vectors(2, 2, 3, tokens, dim, seed=seed)
    kernel = Taylor2()
    products = kernel.query_features(query, scale=0.4) @ kernel.key_features(
        key, scale=0.4
    ).transpose(-2, -1)
    assert products.shape[-1] == tokens
    assert relative_error(products, kernel.weights(query, key, scale=0.4)) < 1e-12


@pytest.mark.parametrize("entries", [[2.0], [2.0, 3.0], [2.0, 3.0, 5.0, 7.0, 11.0]])
def test_second_order_features_hold_each_pair_once(entries: list[float]):
    pairs = itertools.combinations([1.0, *entries], 2)
    expected = [
        1.0,
        *(entry**2 / math.sqrt(2) for entry in entries),
        *(left * right for left, right in pairs),
    ]
    features = taylor_features(torch.tensor(entries, dtype=torch.float64))
    assert sorted(features.tolist()) == pytest.approx(sorted(expected), rel=1e-12)


def test_taylor2_sizes():
    assert Taylor2().num_features(16) == 153
    assert Taylor2().inner_product_size(16) == 16


@given(seed=st.integers(0, 2**32), deviation=st.floats(0.01, 30.0))
def test_taylor2_weights_are_at_least_one_half(seed: int, deviation: float):
    query, key = draw_vectors(2, 2, 3, 6, 5, seed=seed, deviation=deviation)
    assert Taylor2().weights(query, key, scale=0.4).min() >= 0.5


def test_taylor2_with_key_shift_ignores_common_key_offset():
    query, key, _ = draw_inputs(6)
    kernel = Taylor2("mean")
    moved = attention_matrix(kernel, query, key + 3.0, scale=0.4)
    assert relative_error(moved, attention_matrix(kernel, query, key, scale=0.4)) < 1e-12
    plain = attention_matrix(Taylor2(), query, key, scale=0.4)
    assert relative_error(attention_matrix(Taylor2(), query, key + 3.0, scale=0.4), plain) > 1e-3


def test_key_shift_reduces_taylor2_error():
    query, key = (draw_vectors(1, 2, 64, 16, seed=seed, deviation=0.7, mean=0.5) for seed in (1, 2))
    centred = softmax_error(Taylor2("mean"), query, key, scale=0.25)
    assert centred < 0.5 * softmax_error(Taylor2(), query, key, scale=0.25)


def test_taylor2_error_to_softmax():
    query, key = (draw_vectors(1, 8, 256, 16, seed=seed) for seed in (1, 2))
    assert softmax_error(Taylor2(), query, key, scale=0.25) == pytest.approx(0.2, rel=0.08)


def test_key_shift_gradients():
    query, key, _ = draw_inputs(4, batch=1, heads=2, dim=3)

    def weights(key: torch.Tensor) -> torch.Tensor:
        return fit(Taylor2("mean"), query, key, scale=0.4).weights(query, key, scale=0.4)

    assert torch.autograd.gradcheck(weights, key.requires_grad_())


def test_key_shift_raises_if_causal_or_not_fitted():
    query, key, _ = draw_inputs(6)
    kernel = Taylor2("mean")
    fitted = kernel.with_statistics(query, key, scale=0.4, query_mask=None, key_mask=None)
    for causal in (kernel, fitted):
        with pytest.raises(
            ValueError, match=r"key_shift must be 'none' in causal attention.*got 'mean'"
        ):
            causal.causal_key_features(key, scale=0.4)
        with pytest.raises(ValueError, match="in causal attention"):
            causal.weights(query, key, scale=0.4, is_causal=True)
    with pytest.raises(ValueError, match=r"key_mean must be set by `with_statistics`.*got None"):
        kernel.key_features(key, scale=0.4)


def test_unknown_key_shift_raises(unchecked_annotations: None):
    unknown: Any = "means"
    with pytest.raises(
        ValueError, match=r"key_shift must be one of .*got 'means'.*Did you mean 'mean'"
    ):
        Taylor2(unknown)


HEADS, DIM, MAPS = 3, 5, 7
TENSORS = [field.name for field in dataclasses.fields(Hedgehog)]


def build_learned(heads: int = HEADS) -> Hedgehog:
    """A kernel whose every number is another."""
    generator = torch.Generator().manual_seed(3)
    shapes = [(heads, MAPS, DIM)] * 2 + [(heads, MAPS)] * 2
    return Hedgehog(
        *(torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes)
    )


def test_hedgehog_weights_equal_formula():
    query, key, _ = draw_inputs(6)
    mask, kernel = draw_mask(2, 6), build_learned()
    weights = kernel.weights(query, key, scale=DIM**-0.5, key_mask=mask)

    def features(vector: Tensor, weight: Tensor, bias: Tensor) -> list[float]:
        projected = [float(row @ vector + value) for row, value in zip(weight, bias, strict=True)]
        exponentials = [math.exp(value) for value in (*projected, *(-value for value in projected))]
        return [value / sum(exponentials) for value in exponentials]

    for batch in range(2):
        for head in range(HEADS):
            for i in range(6):
                query_features = features(
                    query[batch, head, i], kernel.query_weight[head], kernel.query_bias[head]
                )
                for j in range(6):
                    key_features = features(
                        key[batch, head, j], kernel.key_weight[head], kernel.key_bias[head]
                    )
                    expected = sum(
                        left * right
                        for left, right in zip(query_features, key_features, strict=True)
                    )
                    actual = float(weights[batch, head, i, j])
                    assert actual == pytest.approx(expected if mask[batch, j] else 0.0, rel=1e-12)


def test_hedgehog_scale_multiplies_vectors():
    query, _, _ = draw_inputs(6)
    kernel = build_learned()
    longer = kernel.query_features(1.7 * query, scale=DIM**-0.5)
    assert relative_error(kernel.query_features(query, scale=1.7**2 * DIM**-0.5), longer) < 1e-12


@pytest.mark.parametrize("factor", [0.0, 1.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_hedgehog_features_are_a_distribution(factor: float, dtype: torch.dtype):
    query, key, _ = (factor * tensor for tensor in draw_inputs(6, dtype=dtype))
    kernel = build_learned()
    for features in (kernel.query_features(query, scale=0.4), kernel.key_features(key, scale=0.4)):
        assert features.dtype == dtype
        assert (features > 0).all()
        assert (features.sum(dim=-1) - 1).abs().max() < 1e-5


def test_hedgehog_by_name_starts_from_identity():
    kernel = make_content_kernel("hedgehog", 4)
    assert isinstance(kernel, Hedgehog)
    assert torch.equal(kernel.query_weight, torch.eye(4)[None])
    assert torch.equal(kernel.key_weight, torch.eye(4)[None])
    assert kernel.num_features(4) == 8
    query = draw_inputs(6, dim=4)[0]
    expected = torch.softmax(torch.cat([query, -query], dim=-1), dim=-1)
    assert relative_error(kernel.query_features(query, scale=0.5), expected) < 1e-12


def test_hedgehog_shared_weights_broadcast_over_heads():
    query = draw_inputs(6)[0]
    shared = build_learned(heads=1)
    many = Hedgehog(*(getattr(shared, name).repeat_interleave(HEADS, dim=0) for name in TENSORS))
    features = [kernel.query_features(query, scale=0.4) for kernel in (shared, many)]
    assert relative_error(*features) < 1e-14


# Every evaluation with a backward pass of its own, and those by autograd: in tiles, in chunks, on
# wrapped axes.
EVALUATIONS = [
    pytest.param(None, "dense", Grid(11), 0, id="every pair"),
    pytest.param(None, "linear", Grid(11), 0, id="sums over keys"),
    pytest.param("fourier", "linear", Grid((3, 5)), 0, id="sums of waves"),
    pytest.param("fourier", "linear", Grid((3, 5)), 2, id="sums of waves and a prefix"),
    pytest.param("rotary", "linear", Grid((3, 5)), 1, id="rotated features"),
    pytest.param("rotation", "toeplitz", Grid((3, 5)), 1, id="a matrix an axis"),
    pytest.param("rotation", "dense", Grid((15, 19)), 1, id="tiles of every pair"),
    pytest.param("generalized_quadratic", "fft", Grid((3, 5)), 1, id="transforms"),
    pytest.param("clipped", "rings", Grid((7, 5)), 1, id="rings"),
    pytest.param("clipped", "rings", Grid((13, 11), periodic=True), 0, id="rings on a torus"),
    pytest.param("clipped", "rings", Grid((5, 3, 4)), 0, id="rings in space"),
]


def build(relative: str | None, num_axes: int) -> RelativeKernel | None:
    """Build a relative kernel, with frequencies for the features if it is rotary."""
    if relative == "rotary":
        generator = torch.Generator().manual_seed(5)
        return Rotary.make_random_example(
            generator, heads=HEADS, dim=DIM, num_axes=num_axes, kernel=build_learned()
        )
    return build_relative(relative, heads=HEADS, dim=DIM, num_axes=num_axes, max_distance=2)


def gradients(output: Tensor, leaves: dict[str, Tensor]) -> list[Tensor]:
    """Gradients of the output times fixed numbers."""
    cotangent = torch.cos(torch.arange(output.numel(), dtype=torch.float64)).reshape(output.shape)
    return list(torch.autograd.grad((output * cotangent).sum(), list(leaves.values())))


@pytest.mark.parametrize("masked", [False, True], ids=["all keys", "some keys"])
@pytest.mark.parametrize(("relative", "backend", "grid", "num_prefix_tokens"), EVALUATIONS)
def test_hedgehog_gradients_equal_reference_for_every_backend(
    relative: str | None, backend: str, grid: Grid, num_prefix_tokens: int, masked: bool
):
    num_tokens = num_prefix_tokens + grid.num_tokens
    inputs = draw_inputs(num_tokens, heads=HEADS, dim=DIM)
    mask = draw_mask(2, num_tokens) if masked else None
    kernel, leaves = with_leaves(build_learned())
    built = build(relative, grid.num_axes)
    output = attention(
        *inputs,
        kernel=kernel,
        relative=built,
        grid=grid,
        key_mask=mask,
        backend=backend,
        num_prefix_tokens=num_prefix_tokens,
    )
    positions = Positions(grid, num_prefix_tokens=num_prefix_tokens)
    keep = None if mask is None else mask[:, None]
    expected = reference_attention(inputs, kernel, built, positions, scale=DIM**-0.5, keep=keep)
    for gradient, reference in zip(
        gradients(output, leaves), gradients(expected, leaves), strict=True
    ):
        assert (reference.flatten(1).norm(dim=-1) > 1e-4).all()
        assert relative_error(gradient, reference) < 1e-10


@pytest.mark.parametrize("relative", [None, "clipped", "fourier"])
def test_hedgehog_causal_gradients_agree(relative: str | None):
    num_tokens = 139  # more than a chunk
    inputs = draw_inputs(num_tokens, heads=HEADS, dim=DIM)
    kernel, leaves = with_leaves(build_learned())
    built = build(relative, 1)
    actual = []
    for backend in ("dense", "rings" if relative == "clipped" else "linear"):
        output = attention(
            *inputs,
            kernel=kernel,
            relative=built,
            grid=Grid(num_tokens),
            is_causal=True,
            backend=backend,
        )
        actual.append([output, *gradients(output, leaves)])
    steps, state = [], None
    for token in range(num_tokens):
        query, key, value = (tensor[:, :, token : token + 1] for tensor in inputs)
        output, state = decode(query, key, value, state, kernel=kernel, relative=built)
        steps.append(output)
    together = torch.cat(steps, dim=2)
    actual.append([together, *gradients(together, leaves)])
    for other in actual[1:]:
        assert max(relative_error(*pair) for pair in zip(other, actual[0], strict=True)) < 1e-10


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"query_weight": torch.ones(MAPS, DIM)}, "query_weight must have"),
        ({"key_weight": torch.ones(HEADS, MAPS, DIM + 1)}, "key_weight must have"),
        ({"query_bias": torch.ones(1, MAPS)}, "query_bias must have"),
        ({"key_bias": torch.ones(HEADS, MAPS + 1)}, "key_bias must have"),
    ],
)
def test_hedgehog_tensors_of_different_sizes_raise(
    changed: dict[str, Tensor], message: str, unchecked_annotations: None
):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(build_learned(), **changed)


@pytest.mark.parametrize(
    ("heads", "dim"), [(HEADS + 1, DIM), (HEADS, DIM + 1)], ids=["more heads", "a larger size"]
)
def test_hedgehog_raises_for_queries_of_another_size(
    heads: int, dim: int, unchecked_annotations: None
):
    inputs = draw_inputs(6, heads=heads, dim=dim)
    with pytest.raises(ValueError, match="query_weight must have"):
        attention(*inputs, kernel=build_learned())


def test_elu_weights_equal_formula():
    query, key, _ = draw_inputs(6)
    mask = draw_mask(2, 6)
    weights = Elu().weights(query, key, scale=0.4, key_mask=mask)
    for batch in range(2):
        for head in range(3):
            for i in range(6):
                for j in range(6):
                    expected = 0.0
                    pairs = zip(
                        query[batch, head, i].tolist(), key[batch, head, j].tolist(), strict=True
                    )
                    for pair in pairs if mask[batch, j] else ():
                        x, y = (math.sqrt(0.4) * entry for entry in pair)
                        expected += (1 + x if x > 0 else math.exp(x)) * (
                            1 + y if y > 0 else math.exp(y)
                        )
                    assert float(weights[batch, head, i, j]) == pytest.approx(expected, rel=1e-12)


def test_elu_features_and_gradients_equal_torch():
    vectors = draw_inputs(6)[0]
    vectors[..., 0] = 0.0
    inputs, reference_inputs = (vectors.clone().requires_grad_() for _ in range(2))
    features, expected = (
        Elu().query_features(inputs, scale=1.0),
        torch.nn.functional.elu(reference_inputs) + 1,
    )
    assert relative_error(features, expected) < 1e-12
    gradients = [
        torch.autograd.grad(of.square().sum(), by)[0]
        for of, by in ((features, inputs), (expected, reference_inputs))
    ]
    assert relative_error(*gradients) < 1e-12


def test_small_elu_features_are_accurate_and_positive():
    query = torch.tensor([-20.0, -30.0, -1e4]).reshape(1, 1, 1, 3)
    features = Elu().query_features(query, scale=1.0)
    expected = torch.tensor([math.exp(-20), math.exp(-30), math.exp(LOWEST_EXPONENT)])
    assert (features[0, 0, 0] / expected - 1).abs().max() < 1e-5


def test_constant_features():
    query, key, _ = draw_inputs(6)
    mask = draw_mask(2, 6)
    assert torch.equal(
        Constant().query_features(query, scale=0.4), torch.ones(2, 3, 6, 1, dtype=torch.float64)
    )
    masked = Constant().key_features(key, scale=0.4, key_mask=mask)
    assert torch.equal(masked, mask[:, None, :, None].double().expand(2, 3, 6, 1))
    assert Constant().num_features(5) == 1


def test_constant_kernel_averages_values():
    query, key, value = draw_inputs(6)
    output = attention(query, key, value, kernel="constant")
    assert relative_error(output, value.mean(dim=2, keepdim=True).expand_as(output)) < 1e-12
