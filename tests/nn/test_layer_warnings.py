import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import grad, jvp, vmap

import teka
from teka import Grid
from teka.functional import Positive
from teka.functional.positions import Positions
from teka.nn import Attention, CollapseWarning, LargeOutputWarning, RandomFeatures
from teka.nn.diagnostics.warnings import CHECKED_TOKENS, warn_of_collapse


class Flat(Positive):
    """Features that do not look at what they are features of."""

    def query_exponent(
        self, query: Float[Tensor, "batch heads queries dim"], *, scale: float
    ) -> Float[Tensor, "batch heads queries features"]:
        return torch.zeros_like(super().query_exponent(query, scale=scale))


class FlatFeatures(RandomFeatures):
    def forward(self) -> Flat:
        return Flat(self.projection)


@pytest.fixture
def caught() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        yield messages


def collapses(messages: list[warnings.WarningMessage]) -> list[str]:
    return [str(message.message) for message in messages if message.category is CollapseWarning]


def draw(num_tokens: int, heads: int = 3, dim: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    one, two, three = (
        torch.randn(2, heads, num_tokens, dim, generator=generator) for _ in range(3)
    )
    return one, two, three


def warn(features: RandomFeatures, mask: Tensor | None = None, num_tokens: int = 19) -> None:
    warn_of_collapse(
        features, *draw(num_tokens), relative=None, positions=Positions(), key_mask=mask
    )


def build_layer(features: RandomFeatures | str = "positive", causal: bool = False) -> Attention:
    torch.manual_seed(0)
    return Attention(8, 2, kernel=features, relative=None, causal=causal)


def test_a_flat_kernel_warns_once_and_says_what_to_do(caught: list[warnings.WarningMessage]):
    features = FlatFeatures("positive", 4)
    for _ in range(3):
        warn(features)
    (message,) = collapses(caught)
    assert "FlatFeatures('positive', dim=4, num_features=5, orthogonal) has collapsed" in message
    assert "teka.diagnose" in message
    features.redraw()
    warn(features)
    assert len(collapses(caught)) == 2


def test_a_sound_kernel_does_not_warn_and_is_not_compared_again(
    caught: list[warnings.WarningMessage],
):
    features = RandomFeatures("positive", 4, num_features=64)
    warn(features)
    assert not features.is_unchecked
    assert collapses(caught) == []


def test_only_the_first_kept_tokens_are_compared(caught: list[warnings.WarningMessage]):
    # What is dropped and what comes late may be anything.
    num_tokens = CHECKED_TOKENS + 50
    query, key, value = draw(num_tokens)
    mask = torch.ones(2, num_tokens, dtype=torch.bool)
    mask[:, :7] = False
    key[:, :, :7] = torch.nan
    value[:, :, 7 + CHECKED_TOKENS :] = torch.nan
    features = RandomFeatures("positive", 4, num_features=64)
    warn_of_collapse(
        features, query, key, value, relative=None, positions=Positions(), key_mask=mask
    )
    assert not features.is_unchecked
    assert collapses(caught) == []


def test_positions_of_a_joint_kernel_are_those_of_the_kept_tokens(
    caught: list[warnings.WarningMessage],
):
    torch.manual_seed(0)
    layer = Attention(8, 2, kernel="positive", relative="rotation_joint", num_features=64)
    mask = torch.rand(2, 1 + 35, generator=torch.Generator().manual_seed(0)) < 0.5
    layer(torch.randn(2, 1 + 35, 8), Grid((5, 7)), mask, 1)
    positions = torch.randn(2, 35, 2)
    assert isinstance(layer.kernel, RandomFeatures)
    layer.kernel.is_unchecked = True
    layer(torch.randn(2, 35, 8), positions=positions)
    assert collapses(caught) == []


def test_gradients_and_outputs_are_as_if_nothing_was_compared():
    layer, tokens = build_layer(), torch.randn(2, 19, 8)
    assert isinstance(layer.kernel, RandomFeatures)
    gradients = []
    for fresh in (True, False):
        layer.kernel.is_unchecked = fresh
        layer.zero_grad()
        layer(tokens).square().sum().backward()
        gradient = layer.get_parameter("value.weight").grad
        assert gradient is not None
        gradients.append(gradient.clone())
    assert torch.equal(*gradients)


def test_transforms_of_torch_func_pass_and_leave_the_draw_to_be_compared():
    layer, tokens = build_layer(), torch.randn(3, 2, 19, 8)
    assert isinstance(layer.kernel, RandomFeatures)

    def total(tokens: Tensor) -> Tensor:
        return layer(tokens).sum()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says where it has no batching rule
        whole = vmap(layer)(tokens)
        vmap(grad(total))(tokens)
    grad(total)(tokens[0])
    jvp(layer, (tokens[0],), (tokens[1],))
    assert layer.kernel.is_unchecked
    assert torch.allclose(whole[1], layer(tokens[1]), atol=1e-6)
    assert not layer.kernel.is_unchecked


def test_a_compiled_graph_is_not_compared(monkeypatch: pytest.MonkeyPatch):
    features = FlatFeatures("positive", 4)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    warn(features)
    assert features.is_unchecked


BLANK = torch.ones(1, 35, 8)


def share_no_feature(**options: Any) -> Attention:
    """A layer of which blank tokens' queries and keys lie next to each other in a pair, a quarter turn apart."""
    torch.manual_seed(0)
    layer = Attention(8, 2, **options).eval()
    with torch.no_grad():
        for first, name in enumerate(("query", "key")):
            layer.get_parameter(f"{name}.weight").zero_()
            layer.get_parameter(f"{name}.bias").zero_()[first::2] = 1.0
    return layer


def sizes(messages: list[warnings.WarningMessage]) -> list[str]:
    return [str(message.message) for message in messages if message.category is LargeOutputWarning]


def test_a_layer_whose_outputs_are_large_warns_once(caught: list[warnings.WarningMessage]):
    for expected in (1, 2):
        layer = share_no_feature(rotary_normalizer="features")
        teka.diagnose(layer, BLANK, Grid((5, 7)))
        for _ in range(3):
            layer(BLANK, Grid((5, 7)))
        assert len(sizes(caught)) == expected
    assert sizes(caught)[0].startswith("heads' outputs of squared_relu × rotary are up to ")
    assert "take rotary_normalizer='nonnegative', or 'mixed' (the default)" in sizes(caught)[0]


@pytest.mark.parametrize("normalizer", [None, "mixed", "lengths", "nonnegative"])
def test_layers_with_a_bound_are_not_looked_at(
    normalizer: str | None, caught: list[warnings.WarningMessage], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("teka.nn.attention.warn_of_large_output", pytest.fail)
    share_no_feature(rotary_normalizer=normalizer)(BLANK, Grid((5, 7)))
    share_no_feature(relative=None)(BLANK)
    assert caught == []


def test_a_kernel_with_negative_weights_is_looked_at(caught: list[warnings.WarningMessage]):
    torch.manual_seed(0)
    layer = Attention(8, 2, kernel="trigonometric", relative=None, num_features=1)
    layer(3 * torch.randn(2000, 5, 8))
    (message,) = sizes(caught)
    assert "take kernel='squared_relu' or 'positive'" in message


def test_values_that_are_dropped_do_not_hide_large_outputs(caught: list[warnings.WarningMessage]):
    layer = share_no_feature(rotary_normalizer="features")
    with torch.no_grad():
        # The value of a dropped token, which is taken to be 0, is the bias.
        layer.get_parameter("value.bias").fill_(1e4)
        layer.get_parameter("value.weight").copy_(torch.randn(8, 8) - 1e4 * torch.eye(8))
    layer(BLANK, Grid((5, 7)), torch.arange(35)[None] > 0)
    assert len(sizes(caught)) == 1


def test_recorded_computations_are_not_looked_at(
    caught: list[warnings.WarningMessage], monkeypatch: pytest.MonkeyPatch
):
    layer = share_no_feature(rotary_normalizer="features")
    vmap(lambda tokens: layer(tokens, Grid((5, 7))))(BLANK[None])
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    layer(BLANK, Grid((5, 7)))
    assert sizes(caught) == []
    assert layer.warns_of_large_output
