import itertools
import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from teka.functional import Elu, Focused, Relu, SquaredRelu, attention
from teka.functional.kernels.rectified import FlooredRelu, SharedFeatureMapKernel
from tests.contracts.cases import draw_inputs, draw_mask, relative_error
from tests.functional.kernels.fitted_kernels import attention_matrix

FLOORED: tuple[type[FlooredRelu], ...] = (Relu, SquaredRelu, Focused)


@pytest.mark.parametrize("kind", FLOORED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(exponent=st.floats(-6, 6), seed=st.integers(0, 2**32))
def test_normalized_weights_are_scale_invariant(
    kind: type[FlooredRelu], dtype: torch.dtype, exponent: float, seed: int
):
    query, key, _ = draw_inputs(6, dtype=dtype, seed=seed)
    factor, tolerance = 10.0**exponent, 1e-5 if dtype == torch.float32 else 1e-12
    before = attention_matrix(kind(), query, key, scale=0.4)
    assert (
        relative_error(attention_matrix(kind(), factor * query, key, scale=0.4), before) < tolerance
    )
    assert (
        relative_error(attention_matrix(kind(), query, factor * key, scale=0.4), before) < tolerance
    )


class Sharper(Relu):
    """A feature map with a learned slope."""

    def features_from_rectified(self, rectified: Tensor) -> Tensor:
        return rectified.pow(4)


@dataclass(frozen=True)
class Sloped(Relu):
    """With a slope that may be learned."""

    slope: Tensor = field(kw_only=True)

    def feature_map(self, vectors: Tensor, *, scale: float) -> Tensor:
        return super().feature_map(vectors, scale=scale) * self.slope


@pytest.mark.parametrize("backend", ["dense", "linear"])
def test_learned_feature_map_has_gradients(backend: str):
    slope = torch.ones(5, dtype=torch.float64, requires_grad=True)
    for kernel, leaves in ((Sharper(), []), (Sloped(slope=slope), [slope])):
        inputs = [tensor.requires_grad_() for tensor in draw_inputs(150, dim=5)]
        features = [kernel.feature_map(tensor, scale=1.0) for tensor in inputs[:2]]
        weights = features[0] @ features[1].mT
        expected = weights / weights.sum(dim=-1, keepdim=True) @ inputs[2]
        output = attention(*inputs, kernel=kernel, backend=backend)
        assert relative_error(output, expected) <= 1e-10
        gradients = (
            torch.autograd.grad(result.sin().sum(), [*inputs, *leaves])
            for result in (output, expected)
        )
        for actual, reference in zip(*gradients, strict=True):
            assert relative_error(actual, reference) <= 1e-10


@pytest.mark.parametrize("kind", FLOORED)
@pytest.mark.parametrize("backend", ["dense", "linear"])
def test_extreme_sizes_do_not_change_weights(kind: type[FlooredRelu], backend: str):
    query, key, value = draw_inputs(13, dtype=torch.float32)
    for is_causal in (False, True):
        options: dict[str, Any] = {"kernel": kind(), "backend": backend, "is_causal": is_causal}
        expected = attention(query, key, value, **options)
        for factors in ((1e-30, 1e-30), (1e-30, 1e30), (1e-10, 1e9), (1e30, 1e30)):
            scaled = [
                (tensor * factor).requires_grad_()
                for tensor, factor in zip((query, key), factors, strict=True)
            ]
            output = attention(scaled[0], scaled[1], value, **options)
            assert relative_error(output, expected) < 1e-5, (is_causal, factors)
            for gradient, factor in zip(
                torch.autograd.grad(output.sum(), scaled), factors, strict=True
            ):
                assert (gradient * factor).isfinite().all()
                assert (gradient * factor).abs().max() > 1e-3


@pytest.mark.parametrize("kind", FLOORED)
def test_zero_keys_have_equal_weights(kind: type[FlooredRelu]):
    query, key, value = draw_inputs(6, dtype=torch.float32)
    query[:, :, 2] = 0.0
    for backend in ("dense", "linear"):
        output = attention(query, torch.zeros_like(key), value, kernel=kind(), backend=backend)
        assert relative_error(output, value.mean(dim=2, keepdim=True).expand_as(output)) < 1e-6, (
            backend
        )


@pytest.mark.parametrize("kind", FLOORED)
def test_floor_does_not_dominate_features(kind: type[FlooredRelu]):
    for size in (1e-6, 1.0, 1e6):
        query, key, _ = draw_inputs(6, scale=size)
        without = attention_matrix(kind(1e-12), query, key, scale=0.4)
        assert relative_error(attention_matrix(kind(), query, key, scale=0.4), without) < 1e-4, size


@pytest.mark.parametrize("kind", FLOORED)
def test_query_without_positive_entry(kind: type[FlooredRelu]):
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        key = draw_inputs(6, dtype=dtype)[1]
        sums = kind().key_features(key, scale=0.4).sum(dim=-1)
        for size in (1e-6, 1.0, 1e6):
            weights = attention_matrix(
                kind(), -size * torch.ones(2, 3, 1, 5, dtype=dtype), key, scale=0.4
            )
            assert (
                relative_error(weights[:, :, 0], sums / sums.sum(dim=-1, keepdim=True)) < tolerance
            ), size


@pytest.mark.parametrize("kind", FLOORED)
def test_zero_vector_has_tiny_features(kind: type[FlooredRelu]):
    key = draw_inputs(6)[1]
    key[:, :, 2] = 0.0
    key.requires_grad_()
    features = kind().key_features(key, scale=0.4)
    assert ((features.amax(dim=-1) > 1e-13) == (torch.arange(6) != 2)).all()
    # A focused key has entries down to (ε/√d)³, of which the vector 0 has a millionth.
    least = 1e-6 * (1e-6 / math.sqrt(5)) ** 3 if kind is Focused else 1e-14
    assert torch.allclose(
        features[:, :, 2], torch.tensor(least, dtype=torch.float64), rtol=1e-6, atol=0.0
    )
    (gradient,) = torch.autograd.grad(features.sum(), key)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("kind", FLOORED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("backend", ["dense", "linear"])
def test_zero_key_has_least_weight(kind: type[FlooredRelu], dtype: torch.dtype, backend: str):
    query, key = torch.zeros(1, 1, 2, 64, dtype=dtype), torch.zeros(1, 1, 3, 64, dtype=dtype)
    query[..., 0, 0], query[..., 1, :] = 3.0, -1.0
    key[..., 0, 1], key[..., 1, :] = (
        2.0,
        -1.0,
    )  # orthogonal to the first query, and without a positive entry
    query, key = query.requires_grad_(), key.requires_grad_()
    weights = attention(
        query, key, torch.eye(3, dtype=dtype)[None, None], kernel=kind(), backend=backend
    )[0, 0]
    assert (weights[:, 2] < 0.01 * weights[:, :2].amin(dim=1)).all()
    assert all(
        gradient.isfinite().all()
        for gradient in torch.autograd.grad(weights.square().sum(), (query, key))
    )


@pytest.mark.parametrize(
    "kernel", [*(kind(0.1) for kind in FLOORED), Elu()], ids=lambda kernel: kernel.name
)
def test_features_are_twice_differentiable(kernel: SharedFeatureMapKernel):
    query = draw_inputs(2)[0].requires_grad_()
    features = lambda query: kernel.query_features(query, scale=0.4)  # noqa: E731
    assert torch.autograd.gradcheck(features, query)
    assert torch.autograd.gradgradcheck(features, query)


@pytest.mark.parametrize("kind", FLOORED)
def test_nonpositive_epsilon_raises(kind: type[FlooredRelu]):
    for epsilon in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="epsilon must be"):
            kind(epsilon)


def features_in_loops(kind: type[FlooredRelu], vector: torch.Tensor, epsilon: float) -> list[float]:
    """r, r² or ‖r‖ · r³/‖r³‖ with r = max(x, ε ‖x‖/√d)."""
    rectified = [
        max(x, epsilon * float(vector.norm()) / math.sqrt(len(vector))) for x in vector.tolist()
    ]
    if kind is not Focused:
        return [r ** (2 if kind is SquaredRelu else 1) for r in rectified]
    cubed = [r**3 for r in rectified]
    return [math.hypot(*rectified) / math.hypot(*cubed) * c for c in cubed]


@pytest.mark.parametrize("kind", FLOORED)
@pytest.mark.parametrize("epsilon", [1e-6, 0.5])
def test_focused_weights_equal_formula(kind: type[FlooredRelu], epsilon: float):
    query, key, _ = draw_inputs(6)
    mask = draw_mask(2, 6)
    weights = kind(epsilon).weights(query, key, scale=0.4, key_mask=mask)
    for batch, head, i, j in itertools.product(range(2), range(3), range(6), range(6)):
        vectors = query[batch, head, i], key[batch, head, j]
        pairs = zip(*(features_in_loops(kind, vector, epsilon) for vector in vectors), strict=True)
        expected = sum(a * b for a, b in pairs) if mask[batch, j] else 0.0
        assert float(weights[batch, head, i, j]) == pytest.approx(expected, rel=1e-12, abs=1e-30)


def test_focused_features_keep_the_length():
    query = draw_inputs(6)[0]
    features = Focused().query_features(query, scale=0.4)
    rectified = torch.relu(query)
    assert relative_error(features.norm(dim=-1), rectified.norm(dim=-1)) < 1e-5


def test_focused_does_not_underflow():
    query = draw_inputs(6, scale=1e-7, dtype=torch.float32)[0]
    features = Focused().feature_map(query, scale=1.0)
    rescaled = Focused().feature_map(query * 2.0**23, scale=1.0)
    assert features.amax(dim=-1).min() > 0
    assert relative_error(features * 2.0**23, rescaled) < 1e-6


def test_focused_gradient_equals_formula():
    query = draw_inputs(3)[0].requires_grad_()
    assert torch.autograd.gradcheck(
        lambda query: Focused(0.1).query_features(query, scale=0.4), query
    )


@pytest.mark.parametrize("kind", FLOORED)
def test_masked_keys_do_not_set_the_range(kind: type[FlooredRelu]):
    key, mask = draw_inputs(7)[1], torch.ones(2, 7, dtype=torch.bool)
    mask[:, 3] = False
    expected = kind().key_features(key, scale=1.0, key_mask=mask)
    key[:, :, 3] = torch.inf
    assert torch.equal(kind().key_features(key, scale=1.0, key_mask=mask), expected)


def test_masked_zero_keys_have_no_weight():
    query, key, value = draw_inputs(7)
    mask = torch.arange(7) < torch.tensor([[3], [5]])
    output = attention(
        query, torch.zeros_like(key), value, kernel="squared_relu", key_mask=mask, backend="linear"
    )
    kept = (value * mask[:, None, :, None]).sum(dim=2, keepdim=True) / mask.sum(dim=1)[
        :, None, None, None
    ]
    assert relative_error(output, kept.expand_as(output)) < 1e-12
