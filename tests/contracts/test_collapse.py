"""`teka.diagnose` reports random features that have collapsed to the mean of the values."""

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor

import teka
from teka import Grid
from teka.functional import PositiveFeatures
from teka.functional.kernels import RANDOM_KERNELS
from teka.nn import Attention, RandomFeatures, redraw_projections
from tests.contracts.cases import PAIRS, Case, parametrize_by_kernel


@dataclass(frozen=True)
class EpsilonAfterExponential(PositiveFeatures):
    """A faulty version that adds epsilon to much smaller features, after the exponential."""

    name: ClassVar[str] = "epsilon_after_exponential"

    def _features(self, vectors: Tensor, scale: float, dims: tuple[int, ...]) -> Tensor:
        scaled = vectors * math.sqrt(scale)
        phase = scaled @ self.projection.to(scaled).T
        exponent = phase - scaled.square().sum(dim=-1, keepdim=True) / 2
        return (torch.exp(exponent - phase.amax(dim=dims, keepdim=True)) + 1e-4) / math.sqrt(
            len(self.projection)
        )

    def query_features(
        self, query: Float[Tensor, "batch heads queries dim"], *, scale: float
    ) -> Float[Tensor, "batch heads queries features"]:
        return self._features(query, scale, (-1,))

    def key_features(
        self,
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
    ) -> Float[Tensor, "batch heads keys features"]:
        return self._features(key, scale, (0, 1, 2, 3))


class FaultyFeatures(RandomFeatures):
    def forward(self) -> EpsilonAfterExponential:
        return EpsilonAfterExponential(self.projection)


def unit_scale_layer(
    num_features: int | None = None, features: type[RandomFeatures] = RandomFeatures
) -> Attention:
    """Return a layer whose queries and keys have unit scale if its tokens have."""
    torch.manual_seed(0)
    kernel = features("positive", 64, num_features=num_features)
    layer = Attention(192, 3, kernel=kernel, relative=None, qkv_bias=False).eval()
    assert layer.query is not None
    assert layer.key is not None
    torch.nn.init.orthogonal_(layer.query.weight)
    torch.nn.init.orthogonal_(layer.key.weight)
    return layer


def draw_tokens(num_tokens: int = 289, dim: int = 192) -> Tensor:
    return torch.randn(2, num_tokens, dim, generator=Generator().manual_seed(0))


@pytest.mark.parametrize("num_features", [266, 2048])
def test_features_dominated_by_epsilon_are_a_collapse(num_features: int):
    tokens = draw_tokens()
    broken = teka.diagnose(unit_scale_layer(num_features, FaultyFeatures), tokens)
    correct = teka.diagnose(unit_scale_layer(num_features), tokens)
    assert broken.is_collapsed
    assert broken.findings[0].name == "collapsed features"
    assert "have collapsed" in str(broken)
    assert not correct.is_collapsed
    assert "have collapsed" not in str(correct)
    broken_features, correct_features = broken.groups[0].features, correct.groups[0].features
    assert broken_features is not None
    assert correct_features is not None
    # The error is that of the mean of the values, with any number of features.
    error_of_mean = broken_features.total.error_of_mean
    assert broken_features.total.error == pytest.approx(error_of_mean, rel=0.05)
    assert correct_features.total.error_of_mean == pytest.approx(error_of_mean, rel=1e-6)


def test_every_new_draw_is_diagnosed():
    layer = unit_scale_layer(266, FaultyFeatures)
    for _ in range(3):
        assert teka.diagnose(layer, draw_tokens()).is_collapsed
        assert redraw_projections(layer) == 1
    other = unit_scale_layer(266)
    other.load_state_dict(layer.state_dict())
    assert not teka.diagnose(other, draw_tokens()).is_collapsed


def test_every_layer_of_a_model_is_diagnosed():
    model = torch.nn.Sequential(
        unit_scale_layer(266), torch.nn.LayerNorm(192), unit_scale_layer(2048, FaultyFeatures)
    )
    diagnoses = teka.diagnose(model.eval(), draw_tokens())
    assert {name: diagnosis.is_collapsed for name, diagnosis in diagnoses.items()} == {
        "0": False,
        "2": True,
    }


@parametrize_by_kernel([pair for pair in PAIRS if pair.kernel in RANDOM_KERNELS])
def test_new_layers_have_not_collapsed(pair: Case):
    torch.manual_seed(0)
    layer = Attention(32, 2, kernel=pair.kernel, relative=pair.relative)
    tokens = torch.randn(2, 1 + 77, 32)
    assert not teka.diagnose(layer, tokens, Grid((7, 11)), num_prefix_tokens=1).is_collapsed


def test_equal_tokens_are_not_a_collapse():
    # The exact output for a blank image is the mean of the values.
    torch.manual_seed(0)
    for kernel in RANDOM_KERNELS:
        layer = Attention(32, 2, kernel=kernel, relative=None)
        assert not teka.diagnose(layer, torch.randn(32).expand(2, 77, 32)).is_collapsed
