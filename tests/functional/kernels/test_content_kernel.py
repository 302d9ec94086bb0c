import math
from typing import Any

import pytest
import torch

from teka.functional import (
    KERNELS,
    Elu,
    FeatureKernel,
    PositiveFeatures,
    SquaredRelu,
    default_num_features,
)
from teka.functional.kernels import (
    DETERMINISTIC_KERNELS,
    LEARNED_KERNELS,
    RANDOM_KERNELS,
    make_content_kernel,
    make_rectified_kernel,
)
from tests.contracts.cases import draw_inputs, draw_mask, relative_error
from tests.functional.kernels.fitted_kernels import OTHER_MODES, attention_matrix, build, fit

ALL_MODES = (*KERNELS, *OTHER_MODES)
FEATURE_KERNELS = [
    name for name in KERNELS if isinstance(make_content_kernel(name, 5), FeatureKernel)
]


def test_make_kernel_by_name():
    assert all(make_content_kernel(name, 5).name == name for name in KERNELS)


def test_registries_hold_all_kernels():
    assert set(RANDOM_KERNELS) == {"positive", "trigonometric", "hyperbolic", "optimal"}
    expected = {"softmax", "squared_relu", "constant", "taylor2", "relu", "elu", "focused"}
    assert set(DETERMINISTIC_KERNELS) == expected | {"gaussian", "dot_product", "concatenation"}
    assert set(LEARNED_KERNELS) == {"hedgehog"}


def test_instance_is_returned_unchanged():
    kernel = SquaredRelu(0.1)
    assert make_content_kernel(kernel, 5) is kernel


def test_random_kernels_by_name_are_reproducible():
    for name, kind in RANDOM_KERNELS.items():
        first, second = make_content_kernel(name, 8), make_content_kernel(name, 8)
        assert isinstance(first, kind)
        assert isinstance(second, kind)
        assert first.projection.shape == (16, 8)
        assert torch.equal(first.projection, second.projection)


def test_default_num_features():
    assert [default_num_features(dim) for dim in (1, 2, 32, 48)] == [1, 1, 110, 185]
    assert default_num_features(64) == math.floor(64 * math.log(64))


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("squared-relu", "Did you mean 'squared_relu'"),
        (None, "a name or an instance"),
        (PositiveFeatures, "a name or an inst"),
    ],
)
def test_invalid_kernels_raise(kernel: Any, message: str, unchecked_annotations: None):
    with pytest.raises(ValueError, match=message):
        make_content_kernel(kernel, 5)


@pytest.mark.parametrize("name", FEATURE_KERNELS)
def test_declared_number_and_sign_of_features(name: str):
    query, key, _ = draw_inputs(50, scale=2.0)
    kernel = make_content_kernel(name, 5)
    assert isinstance(kernel, FeatureKernel)
    features, key_features = (
        kernel.query_features(query, scale=0.4),
        kernel.key_features(key, scale=0.4),
    )
    assert features.shape == key_features.shape == (2, 3, 50, kernel.num_features(5))
    assert bool((features @ key_features.transpose(-2, -1) >= 0).all()) == kernel.nonnegative


def test_kernels_are_signed_by_default():
    class Undeclared(FeatureKernel):
        num_features = Elu.num_features
        query_features = Elu.query_features
        key_features = Elu.key_features

    assert not Undeclared().nonnegative
    assert Undeclared().output_bound is None


@pytest.mark.parametrize("name", ALL_MODES)
def test_samples_and_heads_are_independent(name: str):
    query, key, _ = draw_inputs(6)
    kernel = build(name, 5)
    together = attention_matrix(kernel, query, key, scale=0.4)
    changed = [20 * tensor.roll(1, 0) for tensor in (query, key)]
    for tensor, own in zip(changed, (query, key), strict=True):
        tensor[0, 1] = own[0, 1]
    assert torch.equal(attention_matrix(kernel, *changed, scale=0.4)[0, 1], together[0, 1])


@pytest.mark.parametrize("name", ALL_MODES)
def test_masked_tokens_affect_neither_weights_nor_statistics(name: str):
    query, key, _ = draw_inputs(6)
    mask, query_mask, kernel = draw_mask(2, 6), draw_mask(2, 6, seed=1), build(name, 5)
    masks = {"key_mask": mask, "query_mask": query_mask}
    before = attention_matrix(kernel, query, key, scale=0.4, **masks)
    assert (before.transpose(-2, -1).transpose(1, 2)[~mask] == 0).all()
    query = torch.where(query_mask[:, None, :, None], query, 50.0)
    key = torch.where(mask[:, None, :, None], key, -50.0)
    after = attention_matrix(kernel, query, key, scale=0.4, **masks)
    kept = query_mask[:, None, :, None].expand_as(after)
    assert relative_error(after[kept], before[kept]) < 1e-12


@pytest.mark.parametrize("name", FEATURE_KERNELS)
def test_causal_key_features_depend_on_one_key(name: str):
    _, key, _ = draw_inputs(6)
    kernel = make_content_kernel(name, 5)
    assert isinstance(kernel, FeatureKernel)
    features, log_scale = kernel.causal_key_features(key, scale=0.4)
    changed = 20 * key
    changed[:, :, 3] = key[:, :, 3]
    other_features, other_log_scale = kernel.causal_key_features(changed, scale=0.4)
    assert torch.equal(other_features[:, :, 3], features[:, :, 3])
    # None is a logarithm of 0 for every key.
    log_scale_values, other = (
        torch.zeros_like(key[..., 0]) if given is None else given
        for given in (log_scale, other_log_scale)
    )
    assert torch.equal(other[:, :, 3], log_scale_values[:, :, 3])


@pytest.mark.parametrize("name", KERNELS)
def test_causal_weights_are_lower_triangular(name: str):
    query, key, _ = draw_inputs(6)
    mask, kernel = draw_mask(2, 6), make_content_kernel(name, 5)
    mask[:, :3] = torch.tensor([[True, True, False], [False, False, True]])
    causal = kernel.weights(query, key, scale=0.4, key_mask=mask, is_causal=True)
    expected = kernel.weights(query, key, scale=0.4, key_mask=mask).tril()
    assert causal[1, :, :2].count_nonzero() == 0  # without keys
    if not kernel.normalizes_by_count:
        causal, expected = (
            torch.nn.functional.normalize(weights, p=1.0, dim=-1) for weights in (causal, expected)
        )
    assert relative_error(causal, expected) < 1e-10


@pytest.mark.parametrize("name", ALL_MODES)
def test_weights_and_gradients_are_finite_for_large_inputs(name: str):
    for factor in (1.0, 30.0):
        query, key, _ = (
            tensor.requires_grad_() for tensor in draw_inputs(7, scale=factor, dtype=torch.float32)
        )
        weights = fit(build(name, 5), query, key, scale=0.4).weights(query, key, scale=0.4)
        assert weights.isfinite().all(), factor
        attended = (weights @ key).sum()
        for gradient in torch.autograd.grad(attended, (query, key), allow_unused=True):
            assert gradient is None or gradient.isfinite().all(), factor


@pytest.mark.parametrize("name", ALL_MODES)
def test_gradients_are_finite_for_zero_vectors(name: str):
    query, key, _ = draw_inputs(7)
    query[:, :, 2], key[:, :, 3] = 0.0, 0.0
    query.requires_grad_()
    key.requires_grad_()
    weights = fit(build(name, 5), query, key, scale=0.4).weights(query, key, scale=0.4)
    for gradient in torch.autograd.grad((weights @ key).sum(), (query, key), allow_unused=True):
        assert gradient is None or gradient.isfinite().all()


@pytest.mark.parametrize("name", ["squared_relu", "focused", "relu"])
def test_rectified_kernel(name: str):
    assert make_rectified_kernel(name, 0.25) == DETERMINISTIC_KERNELS[name](epsilon=0.25)  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize(
    "kernel", ["softmax", "positive", "hedgehog", "no such", SquaredRelu()], ids=str
)
def test_rectified_kernel_raises_for_other_kernels(kernel: Any):
    with pytest.raises(
        ValueError,
        match=r"epsilon must be None with kernel=.*got 0\.25\. Only kernel='squared_relu'",
    ):
        make_rectified_kernel(kernel, 0.25)
