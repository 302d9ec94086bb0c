import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from jaxtyping import Bool, Float
from tests.contracts.cases import PAIRS, Case, together
from torch import Generator, Tensor

import teka
from teka import Grid
from teka.functional import Positive, draw_projection
from teka.functional.attention import estimator_report
from teka.functional.kernels import RANDOM_KERNELS
from teka.nn import Attention, CollapseWarning, RandomFeatures, redraw_projections


@dataclass(frozen=True)
class SwampedByEpsilon(Positive):
    """A twin as in earlier code: epsilon is added after the exponential, to features of which most are far smaller."""

    name: ClassVar[str] = "swamped_by_epsilon"

    def _swamped(self, vectors: Tensor, scale: float, dims: tuple[int, ...]) -> Tensor:
        scaled = vectors * math.sqrt(scale)
        phase = scaled @ self.projection.to(scaled).T
        exponent = phase - scaled.square().sum(dim=-1, keepdim=True) / 2
        return (torch.exp(exponent - phase.amax(dim=dims, keepdim=True)) + 1e-4) / math.sqrt(
            len(self.projection)
        )

    def query_features(
        self, query: Float[Tensor, "batch heads queries dim"], *, scale: float
    ) -> Float[Tensor, "batch heads queries features"]:
        return self._swamped(query, scale, (-1,))

    def key_features(
        self,
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
    ) -> Float[Tensor, "batch heads keys features"]:
        return self._swamped(key, scale, (0, 1, 2, 3))


class SwampedFeatures(RandomFeatures):
    def forward(self) -> SwampedByEpsilon:
        return SwampedByEpsilon(self.projection)


def swamped_features() -> SwampedFeatures:
    torch.manual_seed(0)
    return SwampedFeatures("positive", 64, num_features=2048)


def draw_unit_inputs(num_tokens: int, dim: int) -> list[Tensor]:
    generator = Generator().manual_seed(0)
    return [torch.randn(2, 3, num_tokens, dim, generator=generator) for _ in range(3)]


@pytest.mark.parametrize("num_features", [266, 4096])
def test_an_epsilon_that_swamps_the_features_is_reported_and_the_sound_features_are_not(
    num_features: int,
):
    query, key, value = draw_unit_inputs(256, 64)
    projection = draw_projection(num_features, 64, generator=Generator().manual_seed(1))
    broken = estimator_report(query, key, value, SwampedByEpsilon(projection))
    sound = estimator_report(query, key, value, Positive(projection))
    assert broken.collapsed
    # No better than the plain mean, however many features there are.
    assert broken.error == pytest.approx(broken.error_of_mean, rel=0.05)
    assert not sound.collapsed
    assert sound.error_of_mean == broken.error_of_mean


@pytest.fixture
def always_warning() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


def unit_scale_layer(kernel: RandomFeatures | str) -> Attention:
    """A layer whose queries and keys have unit scale where its tokens do."""
    torch.manual_seed(0)
    layer = Attention(192, 3, kernel=kernel, relative=None, qkv_bias=False)
    assert layer.query is not None
    assert layer.key is not None
    torch.nn.init.orthogonal_(layer.query.weight)
    torch.nn.init.orthogonal_(layer.key.weight)
    return layer


def test_a_layer_with_collapsed_features_warns_once_a_draw(
    always_warning: list[warnings.WarningMessage],
):
    layer = unit_scale_layer(swamped_features())
    tokens = torch.randn(2, 289, 192)
    for expected in (1, 2, 3):
        for _ in range(3):
            layer(tokens)
        assert [message.category for message in always_warning] == [CollapseWarning] * expected
        assert redraw_projections(layer) == 1
    assert "has collapsed" in str(always_warning[0].message)


def test_a_draw_that_comes_with_a_state_dict_is_checked_too(
    always_warning: list[warnings.WarningMessage],
):
    layer, other = (unit_scale_layer(swamped_features()) for _ in range(2))
    redraw_projections(other)
    tokens = torch.randn(2, 289, 192)
    layer(tokens)
    layer.load_state_dict(other.state_dict())
    layer(tokens)
    assert len(always_warning) == 2


def test_a_layer_with_sound_features_does_not_warn(always_warning: list[warnings.WarningMessage]):
    layer = unit_scale_layer("positive")
    layer(torch.randn(2, 289, 192))
    assert always_warning == []


@together([pair for pair in PAIRS if pair.kernel in RANDOM_KERNELS])
def test_a_fresh_layer_at_its_initial_scale_does_not_warn(pair: Case):
    torch.manual_seed(0)
    layer = Attention(32, 2, kernel=pair.kernel, relative=pair.relative)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(torch.randn(2, 1 + 77, 32), Grid((7, 11)), None, 1)


def test_a_diagnosis_says_what_the_warning_says(always_warning: list[warnings.WarningMessage]):
    tokens = torch.randn(2, 289, 192, generator=Generator().manual_seed(0))
    for kernel, collapsed in ((swamped_features(), True), ("positive", False)):
        diagnosis = teka.diagnose(unit_scale_layer(kernel).eval(), tokens)
        assert diagnosis.collapsed == collapsed
        assert any("has collapsed" in sentence for sentence in diagnosis.advice) == collapsed
    assert always_warning == []


def test_tokens_that_are_all_alike_are_no_collapse(always_warning: list[warnings.WarningMessage]):
    # A blank image: attention is the mean of the values exactly, and so is a sound estimate.
    torch.manual_seed(0)
    for kernel in RANDOM_KERNELS:
        layer = Attention(32, 2, kernel=kernel, relative=None)
        layer(torch.randn(32).expand(2, 77, 32))
    assert [str(message.message) for message in always_warning] == []
