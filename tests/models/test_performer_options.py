from typing import Any

import pytest
import torch
from tests.models.small_performer import SIZE, build, draw_images, kernel_for, layers
from torch import nn

from teka.models.performer import POOLS
from teka.nn import redraw_projections


def test_no_parameter_depends_on_the_size_of_the_image():
    small, large = build((6, 10)).eval(), build((9, 4)).eval()
    large.load_state_dict(small.state_dict())
    images = draw_images(9, 4)
    expected = large(images)
    small.resize((9, 4))
    assert torch.equal(small(images), expected)
    assert small.image_size == (9, 4)
    small.resize(8)
    assert small(draw_images(8, 8)).shape == (4, 3)


def test_a_patch_is_a_token():
    model = build(patch_size=2)
    assert model.grid.shape == (3, 5)
    assert model(draw_images()).shape == (4, 3)
    tokens = model.grid.flatten(model.stem(draw_images()))
    patch = draw_images()[1, :, 2:4, 6:8]  # row 1, column 3: token 8
    expected = (model.get_parameter("stem.weight") * patch).sum((1, 2, 3)) + model.get_parameter("stem.bias")
    assert torch.allclose(tokens[1, 8], expected, atol=1e-5)


@pytest.mark.parametrize("patch_size", [1, 2])
def test_a_stem_of_convolutions_sees_background_at_the_border_as_it_does_inside(patch_size: int):
    model = build(stem="convolution", patch_size=patch_size)
    tokens = model.grid.flatten(model.stem(torch.zeros(1, 2, *SIZE)))
    assert tokens.shape == (1, model.grid.num_tokens, 8)
    assert torch.allclose(tokens, tokens[:, :1].expand_as(tokens), atol=1e-6)
    assert model(draw_images()).shape == (4, 3)


@pytest.mark.parametrize(
    ("position", "backend", "expected"),
    [
        ("rotation", "toeplitz", ("toeplitz",)),
        ("rotation", "auto", ("dense",)),  # of so few tokens
        ("clipped", "rings", ("rings",)),
        ("quadratic", "fft", ("fft",)),
        ("none", "linear", ("linear",)),
        ("absolute", "dense", ("dense",)),
    ],
)
def test_the_backends_are_those_of_the_blocks_with_a_relative_kernel(
    position: str, backend: str, expected: tuple[str, ...]
):
    model = build(position=position, backend=backend)
    assert model.chosen_backends() == expected
    assert model(draw_images()).shape == (4, 3)


def test_a_stem_of_ones_own_takes_the_place_of_the_patches():
    stem = nn.Sequential(nn.Conv2d(2, 5, 3, padding=1), nn.GELU(), nn.Conv2d(5, 8, 2, 2))
    model = build(stem=stem, patch_size=2)
    assert model.stem is stem
    assert model(draw_images()).shape == (4, 3)


def test_options_reach_the_layers():
    model = build(
        kernel="positive", num_features=7, dim_head=3, mlp_ratio=2.0, qkv_bias=False, dropout=0.2, backend="dense"
    )
    for layer in layers(model):
        assert layer.kernel.num_features == 7
        assert layer.dim_head == 3
        assert layer.value.bias is None
        assert layer.backend == "dense"
        assert layer.dropout.p == 0.2
    assert model.get_parameter("blocks.1.mlp.0.weight").shape == (16, 8)
    assert redraw_projections(model) == 2


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("position", ["rotation_joint", "clipped_features"])
def test_the_number_of_random_features_can_be_set_in_the_papers_forms(position: str, pool: str):
    model = build(position=position, pool=pool, num_features=7, kernel=kernel_for(position))
    projections = [buffer for name, buffer in model.named_buffers() if name.endswith("projection")]
    assert projections
    assert all(len(projection) == 7 for projection in projections)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"image_size": 0}, "image_size is 0, expected height and width"),
    ({"image_size": (6, 10, 2)}, r"image_size is \(6, 10, 2\)"),
    ({"image_size": (6, 9), "patch_size": 2}, r"image_size is \(6, 9\), expected .* multiples of patch_size = 2"),
    ({"in_channels": 0}, "in_channels is 0"),
    ({"num_classes": 0}, "num_classes is 0"),
    ({"dim": 0}, "dim is 0"),
    ({"depth": 0}, "depth is 0"),
    ({"heads": 0}, "heads is 0"),
    ({"heads": 3}, "heads is 3, expected a divisor of dim = 8"),
    ({"patch_size": 0}, "patch_size is 0"),
    ({"position": "rotatoin"}, "position is 'rotatoin', expected .*; did you mean 'rotation'"),
    ({"pool": "max"}, "pool is 'max', expected one of 'attention', 'class', 'mean'"),
    ({"stem": "patches"}, "stem is 'patches', expected .*; did you mean 'patch'"),
    ({"kernel": "softmx"}, "kernel is 'softmx', expected .*; did you mean 'softmax'"),
    ({"backend": "dnse"}, "backend is 'dnse', expected .*; did you mean 'dense'"),
    ({"dropout": 1.0}, "dropout is 1.0"),
    ({"position": "absolute", "dim": 6}, "dim is 6, expected a multiple of"),
    ({"num_features": 7}, "num_features is 7, expected None"),
    ({"position": "none", "backend": "rings"}, "backend is 'rings', expected one of"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[str(options) for options, _ in BAD])
def test_a_bad_option_is_an_error_that_names_it(options: dict[str, Any], message: str, as_users_run_it: None):
    with pytest.raises(ValueError, match=message):
        build(**options)


def test_a_position_that_cannot_reach_the_logits_is_said():
    with pytest.warns(UserWarning, match="position='rotation' has no effect with depth=1"):
        build(depth=1, pool="class", position="rotation")


@pytest.mark.parametrize("size", [(4, 2, 10, 6), (4, 3, 6, 10), (2, 6, 10), (4, 2, 6, 11)])
def test_images_of_another_size_are_refused(size: tuple[int, ...], as_users_run_it: None):
    with pytest.raises(ValueError, match=r"images has shape .* expected \(batch, 2, 6, 10\)"):
        build()(torch.zeros(size))


def test_the_convolutional_stem_is_equivariant_up_to_the_edge_of_a_bounded_image():
    stem = build((6, 10), stem="convolution").get_submodule("stem").double()
    content = torch.zeros(1, 2, 6, 10, dtype=torch.float64)
    content[:, :, 1:4, 2:6] = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    moved = torch.roll(content, (2, 4), dims=(2, 3))  # into the corner
    torch.testing.assert_close(stem(moved)[:, :, 2:, 4:], stem(content)[:, :, :4, :6], atol=1e-12, rtol=0)


def test_the_convolutional_stem_is_equivariant_to_rolls_of_a_periodic_image():
    stem = build((6, 10), stem="convolution", periodic=True).get_submodule("stem").double()
    images = draw_images().double()
    rolled = torch.roll(stem(images), (5, -3), dims=(2, 3))
    torch.testing.assert_close(stem(torch.roll(images, (5, -3), dims=(2, 3))), rolled, atol=1e-12, rtol=0)
