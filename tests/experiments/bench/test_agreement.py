import importlib
import math

import pytest
import torch
from torch import Tensor

from teka import Grid
from teka.experiments.bench.agreement import BAND, disagreement
from teka.experiments.bench.layers import LAYERS, Layer
from teka.experiments.bench.step import Step
from teka.nn import Attention

attention_module = importlib.import_module("teka.functional.attention")
FAST = [layer for layer in LAYERS if layer.backend in ("linear", "toeplitz", "rings", "fft")]
LINEAR = next(layer for layer in LAYERS if layer.backend == "linear")


def step_of(layer: Layer) -> Step:
    torch.manual_seed(0)
    return Step(layer.make(12, 2), torch.randn(2, 36, 12, requires_grad=True), layer.grid(36))


@pytest.mark.parametrize("layer", FAST, ids=lambda layer: f"{layer.name}-{layer.backend}")
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
    exact = attention_module.fast
    monkeypatch.setattr(attention_module, "fast", lambda *given, **named: factor * exact(*given, **named))
    found = disagreement(step_of(LINEAR))
    assert found is not None
    assert found.is_acceptable is acceptable


def test_a_wrong_gradient_is_found_and_named(monkeypatch):
    exact = attention_module.fast

    def halves_the_gradient_of_keys(backend, query, key, *given, **named) -> Tensor:
        fixed = key.detach()
        return exact(backend, query, fixed + 0.5 * (key - fixed), *given, **named)

    monkeypatch.setattr(attention_module, "fast", halves_the_gradient_of_keys)
    found = disagreement(step_of(LINEAR))
    assert found is not None
    assert not found.is_acceptable
    assert found.what in ("gradient of key.weight", "gradient of key.bias")
    assert found.error == pytest.approx(0.5, abs=1e-3)


class Unused(Attention):
    """Has a parameter that nothing depends on, and one whose gradient is 0 unless it is computed fast."""

    def __init__(self, slip: float) -> None:
        super().__init__(12, 2, backend="linear")
        self.unused = torch.nn.Parameter(torch.ones(3))
        self.idle = torch.nn.Parameter(torch.ones(()))
        self.slip = slip

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        factor = 0.0 if self.backend == "dense" else self.slip
        return super().forward(tokens, grid) + factor * (self.idle - 1)


@pytest.mark.parametrize(("slip", "acceptable"), [(0.0, True), (1e-6, False)])
def test_gradients_that_are_nothing_must_be_nothing_in_both(slip: float, acceptable: bool):
    found = disagreement(Step(Unused(slip), torch.randn(2, 35, 12, requires_grad=True), Grid((5, 7))))
    assert found is not None
    assert found.is_acceptable is acceptable
    if not acceptable:
        assert (found.what, found.error) == ("gradient of idle", math.inf)
