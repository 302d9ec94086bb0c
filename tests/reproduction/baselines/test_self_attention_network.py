from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from reproduction.baselines import SelfAttentionNetwork
from reproduction.baselines.self_attention_network import POSITIONS, make_relative_kernel
from teka.functional import relative
from teka.functional.relative.stationary import StationaryRelativeKernel
from teka.nn import Attention, LearnedRelativeKernel
from teka.testing import equivariance_error
from tests.contracts.cases import relative_error
from tests.cordonnier2020 import paper_models


def build(**options: Any) -> SelfAttentionNetwork:
    torch.manual_seed(0)
    options = {"dim": 8, "depth": 2, "heads": 3, "dropout": 0.0, **options}
    return SelfAttentionNetwork((12, 20), 2, 5, **options).double()


def first_attention(model: SelfAttentionNetwork) -> Attention:
    attention = model.blocks[0].get_submodule("attention")
    assert isinstance(attention, Attention)
    return attention


def draw_images() -> Tensor:
    return torch.randn(3, 2, 12, 20, generator=torch.Generator().manual_seed(1)).double()


@pytest.mark.parametrize("periodic", [False, True], ids=["bounded", "periodic"])
@pytest.mark.parametrize(
    ("position", "backend"),
    [
        ("quadratic", "toeplitz"),
        ("table", "toeplitz"),
        ("generalized_quadratic", "fft"),
        ("quadratic", "fft"),
    ],
)
def test_fast_backends_give_the_logits_and_gradients_of_dense(position, backend, periodic):
    images, found = draw_images(), []
    for name in ("dense", backend):
        model = build(position=position, backend=name, periodic=periodic)
        assert model.chosen_backends() == (name,)
        logits = model(images)
        logits.square().sum().backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        found.append([logits, *[gradient for gradient in gradients if gradient is not None]])
        assert len(found[-1]) == 1 + len(gradients)
    for dense, fast in zip(*found, strict=True):
        assert relative_error(fast, dense) < 1e-9


@pytest.mark.parametrize("position", ["quadratic", "table"])
def test_toeplitz_backend_is_chosen_at_the_size_of_the_paper(position):
    model = SelfAttentionNetwork(32, 3, 10, position=position, depth=1)
    assert model.chosen_backends() == ("toeplitz",)


@pytest.mark.parametrize(
    ("position", "row"),
    [
        ("quadratic", "SA quadratic"),
        ("generalized_quadratic", "SA quadratic generalized"),
        ("table", "SA learned"),
    ],
)
def test_number_of_parameters_equals_the_paper(position, row):
    with torch.device("meta"):
        model = SelfAttentionNetwork(32, 3, 10, position=position)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert f"{parameters / 1e6:.1f}M" == paper_models()[row].parameters


def test_heads_that_attend_to_single_pixels_equal_a_convolution():
    model = build(heads=9, depth=1, downsampling=1, periodic=True)
    attention = first_attention(model)
    assert isinstance(attention.relative, LearnedRelativeKernel)
    with torch.no_grad():
        attention.relative.center.copy_(torch.cartesian_prod(*[torch.arange(-1.0, 2.0)] * 2))
        attention.relative.raw_precision.fill_(60.0)
    maps = torch.randn(2, 8, 12, 20).double()
    # Each head has one matrix of the convolution, at the offset of its center in the window.
    weight = attention.output.weight.unflatten(1, (3, 3, 8)).permute(0, 3, 1, 2)
    expected = conv2d(pad(maps, (1, 1, 1, 1), mode="circular"), weight, attention.output.bias)
    found = attention(model.grid.flatten(maps), model.grid)
    assert relative_error(model.grid.unflatten(found), expected) < 1e-10


@pytest.mark.parametrize("content", [None, "softmax", "squared_relu"])
@pytest.mark.parametrize("position", POSITIONS)
def test_periodic_network_is_invariant_only_to_shifts_by_whole_blocks(position, content):
    model = build(position=position, content=content, periodic=True).eval()
    assert equivariance_error(model, draw_images(), [(2, -4), (6, 10)]).maximum < 1e-10
    assert equivariance_error(model, draw_images(), [(1, 0)]).maximum > 1e-6


def test_content_multiplies_the_attention_by_position():
    with_content, without = build(content="softmax"), build()
    assert first_attention(with_content).query is not None
    assert first_attention(without).query is None
    with_content.load_state_dict({**with_content.state_dict(), **without.state_dict()})
    assert relative_error(with_content(draw_images()), without(draw_images())) > 1e-4
    with torch.no_grad():
        for block in with_content.blocks:
            block.get_parameter("attention.query.weight").zero_()
            block.get_parameter("attention.query.bias").zero_()
    assert relative_error(with_content(draw_images()), without(draw_images())) < 1e-10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"downsampling": 8},
            r"image_size must be height and width, multiples of downsampling = 8.*got \(12, 20\)",
        ),
        ({"position": "rotary"}, "position must be one of.*got 'rotary'"),
        ({"content": "softmx"}, r"kernel must be .*got 'softmx'.*Did you mean 'softmax'"),
        (
            {"position": "generalized_quadratic", "backend": "toeplitz"},
            "backend must be one of.*got 'toeplitz'",
        ),
        ({"content": "softmax", "backend": "toeplitz"}, "backend must be one of.*got 'toeplitz'"),
    ],
)
def test_invalid_options_are_errors(options, message):
    with pytest.raises(ValueError, match=message):
        build(**options)


def test_blocks_can_have_different_numbers_of_heads():
    model = build(heads=[3, 5])
    assert model.heads == (3, 5) == tuple(attention.heads for attention in model.attention_layers())
    assert build(heads=3).heads == (3, 3)
    assert model(draw_images()).shape == (3, 5)


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("content", [None, "softmax"])
def test_copy_without_heads_equals_heads_with_zero_output(position, content):
    model = build(heads=(3, 5), position=position, content=content).eval()
    pruned = model.copy_without_heads([[1], [4, 0, 2]])
    assert pruned.heads == (2, 2)
    fresh = build(heads=(2, 2), position=position, content=content).eval()
    fresh.load_state_dict(pruned.state_dict())
    assert relative_error(fresh(draw_images()), pruned(draw_images())) == 0
    with torch.no_grad():
        for attention, removed in zip(model.attention_layers(), [[1], [4, 0, 2]], strict=True):
            attention.output.weight.unflatten(1, (attention.heads, -1))[:, removed] = 0
    assert relative_error(pruned(draw_images()), model(draw_images())) < 1e-10


def test_number_of_parameters_of_pruned_heads_equals_the_paper():
    with torch.device("meta"):
        model = SelfAttentionNetwork(
            32, 3, 10, position="generalized_quadratic", heads=(7, 5, 8, 7, 3, 9)
        )
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert (
        f"{parameters / 1e6:.1f}M" == paper_models()["SA quadratic generalized pruned"].parameters
    )


@pytest.mark.parametrize("heads", [0, (3,), (3, 0), (3, 3, 3)], ids=str)
def test_invalid_numbers_of_heads_are_errors(heads):
    with pytest.raises(ValueError, match=r"heads must be .* for each of depth = 2 blocks"):
        build(heads=heads)


@pytest.mark.parametrize("position", POSITIONS)
def test_initial_heads_differ(position: str):
    torch.manual_seed(0)
    kernel = make_relative_kernel(position, heads=3, sides=(4, 6), embedding_dim=8)()
    assert isinstance(kernel, StationaryRelativeKernel)
    log = kernel.log_weight_at(torch.tensor([[0.0, 0.0], [1.0, -2.0], [3.0, 5.0]]))
    assert log.shape == (3, 3)
    assert all(
        not torch.allclose(log[first], log[second]) for first, second in ((0, 1), (1, 2), (0, 2))
    )


def test_initial_centers_and_widths_of_gaussians():
    torch.manual_seed(0)
    quadratic = make_relative_kernel("quadratic", heads=2000, sides=(4, 6), embedding_dim=8)()
    general = make_relative_kernel(
        "generalized_quadratic", heads=2000, sides=(4, 6), embedding_dim=8
    )()
    assert isinstance(quadratic, relative.QuadraticBias)
    assert isinstance(general, relative.GeneralizedQuadraticBias)
    for kernel in (quadratic, general):
        assert float(kernel.center.detach().std()) == pytest.approx(2, rel=0.05)
    torch.testing.assert_close(quadratic.precision, torch.full((2000,), 0.5))
    noise = (general.precision_factor - torch.eye(2)).detach()
    assert float(noise.std()) == pytest.approx(0.01, rel=0.05)


def test_table_has_an_entry_for_every_offset_of_the_grid():
    kernel = make_relative_kernel("table", heads=2, sides=(4, 6), embedding_dim=8)()
    assert isinstance(kernel, relative.BiasTable)
    assert kernel.max_offset == 5


def test_unknown_position_is_an_error_with_the_closest_name():
    with pytest.raises(
        ValueError, match=r"position must be .*got 'quadratc'.*Did you mean 'quadratic'"
    ):
        make_relative_kernel("quadratc", heads=2, sides=(4, 6), embedding_dim=8)
