import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.cases import draw_inputs, draw_mask, relative_change
from tests.functional.kernel.fitted_kernels import attention_matrix, draw_vectors, fit, softmax_error

from teka.functional import Taylor2
from teka.functional.kernel.features import second_order_features


@pytest.mark.parametrize("key_shift", ["none", "mean"])
def test_its_weights_are_the_formula_in_loops(key_shift: Any):
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
def test_products_of_features_are_the_weights(dim: int, tokens: int, seed: int):
    query, key = draw_vectors(2, 2, 3, tokens, dim, seed=seed)
    kernel = Taylor2()
    products = kernel.query_features(query, scale=0.4) @ kernel.key_features(key, scale=0.4).transpose(-2, -1)
    assert products.shape[-1] == tokens
    assert relative_change(products, kernel.weights(query, key, scale=0.4)) < 1e-12


def test_features_come_in_the_stated_order():
    x = torch.tensor([[[[2.0, 3.0, 5.0]]]], dtype=torch.float64)
    root = math.sqrt(2)
    expected = torch.tensor([1, 2, 3, 5, 4 / root, 9 / root, 25 / root, 6, 10, 15], dtype=torch.float64)
    assert relative_change(second_order_features(x)[0, 0, 0], expected) < 1e-12


def test_it_has_one_and_d_and_d_times_d_plus_one_half_features_but_dense_vectors_of_size_d():
    assert Taylor2().num_features(16) == 153
    assert Taylor2().dense_size(16) == 16


@given(seed=st.integers(0, 2**32), deviation=st.floats(0.01, 30.0))
def test_no_weight_is_below_one_half(seed: int, deviation: float):
    query, key = draw_vectors(2, 2, 3, 6, 5, seed=seed, deviation=deviation)
    assert Taylor2().weights(query, key, scale=0.4).min() >= 0.5


def test_with_its_mean_taken_out_a_vector_added_to_all_keys_changes_nothing():
    query, key, _ = draw_inputs(6)
    kernel = Taylor2("mean")
    moved = attention_matrix(kernel, query, key + 3.0, scale=0.4)
    assert relative_change(moved, attention_matrix(kernel, query, key, scale=0.4)) < 1e-12
    plain = attention_matrix(Taylor2(), query, key, scale=0.4)
    assert relative_change(attention_matrix(Taylor2(), query, key + 3.0, scale=0.4), plain) > 1e-3


def test_taking_the_mean_out_brings_it_nearer_to_softmax():
    query, key = (draw_vectors(1, 2, 64, 16, seed=seed, deviation=0.7, mean=0.5) for seed in (1, 2))
    centred = softmax_error(Taylor2("mean"), query, key, scale=0.25)
    assert centred < 0.5 * softmax_error(Taylor2(), query, key, scale=0.25)


def test_its_error_to_softmax_is_the_known_one():
    query, key = (draw_vectors(1, 8, 256, 16, seed=seed) for seed in (1, 2))
    assert softmax_error(Taylor2(), query, key, scale=0.25) == pytest.approx(0.2, rel=0.08)


def test_gradients_pass_through_the_mean():
    query, key, _ = draw_inputs(4, batch=1, heads=2, dim=3)

    def weights(key: torch.Tensor) -> torch.Tensor:
        return fit(Taylor2("mean"), query, key, scale=0.4).weights(query, key, scale=0.4)

    assert torch.autograd.gradcheck(weights, key.requires_grad_())


def test_a_mean_is_refused_where_it_would_hold_later_keys_or_was_not_taken():
    query, key, _ = draw_inputs(6)
    kernel = Taylor2("mean")
    fitted = kernel.fitted(query, key, scale=0.4, query_mask=None, key_mask=None)
    for causal in (kernel, fitted):
        with pytest.raises(ValueError, match="key_shift is 'mean', expected 'none' in causal attention"):
            causal.causal_key_features(key, scale=0.4)
        with pytest.raises(ValueError, match="in causal attention"):
            causal.weights(query, key, scale=0.4, is_causal=True)
    with pytest.raises(ValueError, match="key_mean is None, expected the mean of the keys"):
        kernel.key_features(key, scale=0.4)


def test_an_unknown_shift_is_refused(as_users_run_it: None):
    unknown: Any = "means"
    with pytest.raises(ValueError, match=r"key_shift is 'means', expected one of .*; did you mean 'mean'"):
        Taylor2(unknown)
