import importlib

import pytest
import torch

from teka import Grid
from teka.bench.agreement import BAND, disagreement
from teka.bench.layers import LAYERS, Layer
from teka.bench.step import Step
from teka.functional.backend.sums import Sums

attention_module = importlib.import_module("teka.functional.attention")
FAST = [layer for layer in LAYERS if layer.backend in ("linear", "toeplitz", "rings")]
LINEAR = next(layer for layer in LAYERS if layer.backend == "linear")


def step_of(layer: Layer) -> Step:
    torch.manual_seed(0)
    return Step(layer.make(12, 2), torch.randn(2, 35, 12, requires_grad=True), Grid((5, 7)))


@pytest.mark.parametrize("layer", FAST, ids=lambda layer: layer.name)
def test_every_fast_path_agrees_with_its_dense_twin_far_within_the_band(layer):
    found = disagreement(step_of(layer))
    assert found is not None
    assert found.is_acceptable
    assert found.error < BAND / 10


def test_dense_layers_and_other_libraries_have_no_twin():
    without = [layer for layer in LAYERS if layer not in FAST]
    assert len(without) == 6
    assert all(disagreement(step_of(layer)) is None for layer in without)


@pytest.mark.parametrize(("factor", "acceptable"), [(1.0, True), (1.01, False), (float("nan"), False)])
def test_a_fast_path_that_computes_something_else_is_found(monkeypatch, factor: float, acceptable: bool):
    exact = attention_module.linear

    def scaled(query_features, key_features, value) -> Sums:
        sums = exact(query_features, key_features, value)
        return Sums(factor * sums.numerator, sums.denominator)

    monkeypatch.setattr(attention_module, "linear", scaled)
    found = disagreement(step_of(LINEAR))
    assert found is not None
    assert found.is_acceptable is acceptable


def test_a_wrong_gradient_is_found_and_named(monkeypatch):
    exact = attention_module.linear

    def halves_the_gradient_of_keys(query_features, key_features, value) -> Sums:
        fixed = key_features.detach()
        return exact(query_features, fixed + 0.5 * (key_features - fixed), value)

    monkeypatch.setattr(attention_module, "linear", halves_the_gradient_of_keys)
    found = disagreement(step_of(LINEAR))
    assert found is not None
    assert not found.is_acceptable
    assert found.what in ("gradient of key.weight", "gradient of key.bias")
    assert found.error == pytest.approx(0.5, abs=1e-3)
