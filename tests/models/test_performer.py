"""The Performer and its options."""

import itertools
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn

from teka.functional import KERNELS, RELATIVES, Focused, SquaredRelu
from teka.functional.relative.rotary import ROTARY_NORMALIZERS
from teka.models.performer_config import POOLS, POSITIONS
from teka.nn import LearnedRelativeKernel, redraw_projections
from tests.contracts.cases import is_valid_pair, relative_error
from tests.models.small_performer import SIZE, build, draw_images, kernel_for, layers

pytestmark = pytest.mark.usefixtures("unchecked_annotations_in_module")


def combine_with_pools(*choices: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return every combination of choices, with one pooling after the other."""
    return [
        (*choice, POOLS[index % len(POOLS)])
        for index, choice in enumerate(itertools.product(*choices))
    ]


@pytest.mark.parametrize("position", POSITIONS)
def test_every_parameter_has_a_finite_gradient_after_two_steps(position: str):
    for kernel, pool in zip(KERNELS, itertools.cycle(POOLS), strict=False):
        if not is_valid_pair(kernel, position if position in RELATIVES else None):
            with pytest.raises(
                ValueError,
                match=rf"kernel must be .*got '{kernel}'|features of kernel must be .*got 1|relative must be .*got 'rotary'",
            ):
                build(position=position, pool=pool, kernel=kernel)(draw_images())
            continue
        # The default kernel with every position, and every kernel with one: layers meet them all in the contracts.
        if kernel != "squared_relu" and position not in ("none", "rotary", "rotation_joint"):
            continue
        # With some seeds all weights of the kernel "concatenation", a ReLU, are 0.
        model = build(position=position, pool=pool, kernel=kernel, seed=1)
        labels = torch.tensor([0, 1, 2, 1])
        optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
        for step in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(draw_images()), labels).backward()
            if step < 2:
                optimizer.step()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, (kernel, name)
            assert torch.isfinite(parameter.grad).all(), (kernel, name)
            assert parameter.grad.abs().max() > 1e-9, (kernel, name)


@pytest.mark.parametrize("position", ["rotation", "clipped", "clipped_features", "none"])
def test_logits_are_invariant_to_periodic_shifts_by_whole_patches(position: str):
    images = draw_images().double()
    for stem, patch_size, pool in combine_with_pools(["patch", "convolution"], [1, 2]):
        options = {"position": position, "pool": pool, "stem": stem, "patch_size": patch_size}
        model = build(periodic=True, **options).double().eval()
        for name, parameter in model.named_parameters():
            if name.endswith("distance_embedding"):
                nn.init.normal_(parameter)
        for shift in ((0, 2), (2, 0), (4, 6), (-2, 4)):
            assert relative_error(model(images.roll(shift, (2, 3))), model(images)) < 1e-10, options
        # On a bounded image a roll changes the distances. A roll by a part of a patch changes the patches.
        bounded = build(**options).double().eval()
        bounded.load_state_dict(model.state_dict())
        bounded_change = relative_error(bounded(images.roll((2, 4), (2, 3))), bounded(images))
        assert (bounded_change < 1e-10) == (position == "none" and stem == "patch"), options
        change_by_1_pixel = relative_error(model(images.roll(1, 3)), model(images))
        assert (change_by_1_pixel < 1e-10) == (patch_size == 1), options


@pytest.mark.parametrize("position", ["absolute", "rotation_joint"])
def test_absolute_positions_break_equivariance_and_joint_rotation_is_an_error(position: str):
    if position == "rotation_joint":
        with pytest.raises(ValueError, match="no periodic axis"):
            build(position=position, periodic=True, kernel="softmax")
        return
    model = build(position=position, periodic=True, kernel="softmax")
    assert relative_error(model(draw_images().roll(3, 3)), model(draw_images())) > 1e-4


@pytest.mark.parametrize("position", ["absolute", "rotation", "clipped"])
def test_logits_depend_on_the_order_of_pixels_only_with_positions(position: str):
    images, shuffled = (
        draw_images(),
        draw_images().flatten(2).roll(17, 2).flip(2).unflatten(2, SIZE),
    )
    model = build(position=position, stem="patch")
    for name, parameter in model.named_parameters():
        if name.endswith("distance_embedding"):
            nn.init.normal_(parameter)
    assert relative_error(model(shuffled), model(images)) > 1e-4
    without = build(position="none", stem="patch")
    assert relative_error(without(shuffled), without(images)) < 1e-5


def test_the_class_token_has_no_position():
    model = build(pool="class").eval()
    assert model.class_token is not None
    images = draw_images()
    before = model(images)
    with torch.no_grad():
        model.class_token.mul_(-1)
    assert not torch.allclose(model(images), before)
    assert build(pool="mean").class_token is None
    # Only the class token of the last block is read, so that this block has no relative kernel.
    relatives = [layer.relative for layer in layers(build(depth=3))]
    assert [relative is None for relative in relatives] == [False, False, True]
    assert all(layer.relative is not None for layer in layers(build(depth=3, pool="mean")))


def test_number_of_parameters_equals_the_paper():
    sizes = {"dim": 256, "depth": 6, "heads": 8, "stem": "patch"}
    model = build((32, 32), 3, 10, **sizes, position="rotation", kernel="positive", dropout=0.1)
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(
        4.7e6, rel=0.02
    )


@pytest.mark.parametrize("position", POSITIONS)
def test_the_last_block_computes_only_the_class_token(position: str):
    model = build(position=position, kernel=kernel_for(position)).double().eval()
    images = draw_images().double()
    tokens = model.grid.flatten(model.stem(images))
    if model.absolute_position is not None:
        tokens = model.absolute_position(tokens, model.grid)
    assert model.class_token is not None
    tokens = torch.cat([model.class_token.expand(4, 1, -1), tokens], dim=1)
    for block in model.blocks:
        tokens = block(tokens, model.grid, None, 1)
    assert relative_error(model(images), model.head(model.norm(tokens)[:, 0])) < 1e-12


def test_parameters_do_not_depend_on_the_image_size():
    small, large = build((6, 10)).eval(), build((9, 4)).eval()
    large.load_state_dict(small.state_dict())
    images = draw_images(9, 4)
    expected = large(images)
    small.resize((9, 4))
    assert torch.equal(small(images), expected)
    assert small.image_size == (9, 4)
    small.resize(8)
    assert small(draw_images(8, 8)).shape == (4, 3)
    with pytest.raises(
        ValueError, match=r"image_size must be a number of pixels .* for each of 2 axes.*got \(8,\)"
    ):
        small.resize((8,))
    assert small.image_size == (8, 8)


def test_an_absolute_table_fixes_the_image_size():
    model = build(position="absolute_table", patch_size=2)
    assert model.get_parameter("absolute_position.table").shape[0] == 15
    assert model.takes((6, 10))
    assert not model.takes((6, 8))
    with pytest.raises(
        ValueError, match=r"\(6, 10\), for which position='absolute_table' has vectors"
    ):
        model.resize(8)


def test_a_patch_is_a_token():
    assert len(list(build().stem.children())) == 3  # Two convolutions if a token is a pixel.
    model = build(patch_size=2)
    assert model.grid.shape == (3, 5)
    assert model(draw_images()).shape == (4, 3)
    tokens = model.grid.flatten(model.stem(draw_images()))
    patch = draw_images()[1, :, 2:4, 6:8]  # Token 8 in row 1, column 3.
    expected = (model.get_parameter("stem.weight") * patch).sum((1, 2, 3)) + model.get_parameter(
        "stem.bias"
    )
    assert torch.allclose(tokens[1, 8], expected, atol=1e-5)


@pytest.mark.parametrize("patch_size", [1, 2])
def test_the_convolutional_stem_treats_the_border_like_the_inside(patch_size: int):
    model = build(stem="convolution", patch_size=patch_size)
    tokens = model.grid.flatten(model.stem(torch.zeros(1, 2, *SIZE)))
    assert tokens.shape == (1, model.grid.num_tokens, 8)
    assert torch.allclose(tokens, tokens[:, :1].expand_as(tokens), atol=1e-6)
    assert model(draw_images()).shape == (4, 3)


@pytest.mark.parametrize(
    ("position", "backend", "expected"),
    [
        ("rotation", "toeplitz", ("toeplitz",)),
        ("rotation", "auto", ("dense",)),  # There are few tokens.
        ("clipped", "rings", ("rings",)),
        ("quadratic", "fft", ("fft",)),
        ("none", "linear", ("linear",)),
        ("absolute", "dense", ("dense",)),
    ],
)
def test_chosen_backends_are_of_blocks_with_a_relative_kernel(
    position: str, backend: str, expected: tuple[str, ...]
):
    model = build(position=position, backend=backend)
    assert model.chosen_backends() == expected
    assert model(draw_images()).shape == (4, 3)


def test_a_custom_stem():
    stem = nn.Sequential(nn.Conv2d(2, 5, 3, padding=1), nn.GELU(), nn.Conv2d(5, 8, 2, 2))
    model = build(stem=stem, patch_size=2)
    assert model.stem is stem
    assert model(draw_images()).shape == (4, 3)


def test_options_reach_the_layers():
    model = build(
        kernel="positive",
        num_features=7,
        dim_head=3,
        mlp_ratio=2.0,
        qkv_bias=False,
        dropout=0.2,
        backend="dense",
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
def test_the_number_of_random_features_of_joint_rotation_and_clipped_features(
    position: str, pool: str
):
    model = build(position=position, pool=pool, num_features=7, kernel=kernel_for(position))
    projections = [buffer for name, buffer in model.named_buffers() if name.endswith("projection")]
    assert projections
    assert all(len(projection) == 7 for projection in projections)


BAD: list[tuple[dict[str, Any], str]] = [
    (
        {"image_size": 0},
        "image_size must be a number of pixels of at least 1 for each of 1 to 3 axes.*got 0",
    ),
    ({"image_size": (6, 10, 2, 4)}, r"image_size must be .*got \(6, 10, 2, 4\)"),
    (
        {"image_size": (6, 9), "patch_size": 2},
        r"image_size must be .* multiples of patch_size = 2.*got \(6, 9\)",
    ),
    ({"in_channels": 0}, r"in_channels must be .*got 0"),
    ({"num_classes": 0}, r"num_classes must be .*got 0"),
    ({"dim": 0}, r"dim must be .*got 0"),
    ({"depth": 0}, r"depth must be .*got 0"),
    ({"heads": 0}, r"heads must be .*got 0"),
    ({"heads": 3}, "heads must be a divisor of dim = 8.*got 3"),
    ({"patch_size": 0}, r"patch_size must be .*got 0"),
    ({"position": "rotatoin"}, "position must be .*got 'rotatoin'.*Did you mean 'rotation'"),
    ({"pool": "max"}, "pool must be one of 'attention', 'class', 'mean'.*got 'max'"),
    ({"stem": "patches"}, "stem must be .*got 'patches'.*Did you mean 'patch'"),
    ({"kernel": "softmx"}, "kernel must be .*got 'softmx'.*Did you mean 'softmax'"),
    ({"backend": "dnse"}, "backend must be .*got 'dnse'.*Did you mean 'dense'"),
    ({"dropout": 1.0}, r"dropout must be .*got 1.0"),
    ({"position": "absolute", "dim": 6}, "dim must be a multiple of.*got 6"),
    ({"num_features": 7}, "num_features must be None.*got 7"),
    ({"projection": "independent"}, "projection must be None.*got 'independent'"),
    ({"position": "none", "backend": "rings"}, "backend must be one of.*got 'rings'"),
    (
        {"num_waves": 3},
        "num_waves must be None with position='rotation'.*got 3.*option of position='fourier'",
    ),
    (
        {"longest_wave": 3.0, "position": "none"},
        "longest_wave must be None with position='none'.*got 3.0",
    ),
    (
        {"wave_weight": 3.0, "position": "table"},
        "wave_weight must be None with position='table'.*got 3.0",
    ),
    (
        {"rotation_weight_scale": 1.0, "position": "fourier"},
        "rotation_weight_scale must be None with position.*got 1.0",
    ),
    (
        {"rotation_weight_scale": -1.0},
        "weight_scale must be a finite number of at least 0.*got -1.0",
    ),
    (
        {"rotary_normalizer": "lengths"},
        "rotary_normalizer must be None with position='rotation'.*got 'lengths'.*option of position='rotary'",
    ),
    (
        {"rotary_normalizer": "length", "position": "rotary"},
        "normalizer must be .*got 'length'.*Did you mean 'lengths'",
    ),
    (
        {"rotary_normalizer": "lengths", "position": "rotary", "kernel": "softmax"},
        "rotary_normalizer must be None with kernel='softmax'.*got 'lengths'",
    ),
    ({"num_waves": 0, "position": "fourier"}, "num_waves must be at least 1.*got 0"),
    (
        {"position_heads": 1, "position": "absolute"},
        "position_heads must be None or 0 without a relative kernel.*got 1",
    ),
    ({"position_heads": 2}, "position_heads must be at most 1, got 2"),
    (
        {"position_heads": 1, "position": "rotary"},
        "position_heads must be None or 0 with relative='rotary'.*got 1",
    ),
    (
        {"epsilon": 0.1, "kernel": "softmax"},
        "epsilon must be None with kernel='softmax'.*got 0.1.*kernel='squared_relu'",
    ),
    (
        {"epsilon": 0.1, "kernel": SquaredRelu()},
        "epsilon must be None with kernel=SquaredRelu.*got 0.1",
    ),
    ({"epsilon": 0.1, "kernel": None}, "epsilon must be None with kernel=None"),
    ({"epsilon": 0.0}, "epsilon must be a positive finite number.*got 0.0"),
    ({"query_key": "centered"}, "query_key must be .*got 'centered'.*Did you mean 'centred'"),
    ({"value_convolution": 2}, "value_convolution must be None or an odd number.*got 2"),
    (
        {"value_convolution": 3, "depth": 1, "position": "none"},
        "value_convolution must be None with depth=1.*got 3",
    ),
]


def test_invalid_option_is_an_error_with_its_name(unchecked_annotations: None):
    for options, message in BAD:
        with pytest.raises(ValueError, match=message):
            build(**options)


def test_a_position_without_effect_gives_a_warning():
    with pytest.warns(UserWarning, match="position='rotation' has an effect"):
        build(depth=1, pool="class", position="rotation")


def test_images_with_another_size_are_errors(unchecked_annotations: None):
    for size in ((4, 2, 10, 6), (4, 3, 6, 10), (2, 6, 10), (4, 2, 6, 11)):
        with pytest.raises(ValueError, match=r"images must have shape \(batch, 2, 6, 10\)"):
            build()(torch.zeros(size))


def test_the_convolutional_stem_is_equivariant_up_to_the_edge_of_a_bounded_image():
    stem = build((6, 10), stem="convolution").get_submodule("stem").double()
    content = torch.zeros(1, 2, 6, 10, dtype=torch.float64)
    content[:, :, 1:4, 2:6] = torch.randn(
        2, 3, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64
    )
    moved = torch.roll(content, (2, 4), dims=(2, 3))  # Into the corner.
    torch.testing.assert_close(
        stem(moved)[:, :, 2:, 4:], stem(content)[:, :, :4, :6], atol=1e-12, rtol=0
    )


def test_the_convolutional_stem_is_equivariant_to_rolls_of_a_periodic_image():
    stem = build((6, 10), stem="convolution", periodic=True).get_submodule("stem").double()
    images = draw_images().double()
    rolled = torch.roll(stem(images), (5, -3), dims=(2, 3))
    torch.testing.assert_close(
        stem(torch.roll(images, (5, -3), dims=(2, 3))), rolled, atol=1e-12, rtol=0
    )


@pytest.mark.parametrize(
    ("position", "expected"),
    [("none", None), ("absolute", None), ("fourier", "fourier"), ("clipped", "clipped")],
)
def test_positions_without_options_are_passed_by_name(position: str, expected: str | None):
    for layer in layers(build(position=position, pool="mean")):
        assert (None if layer.relative is None else layer.relative().name) == expected


@pytest.mark.parametrize("position", ["rotation", "rotation_joint"])
def test_layers_share_the_frequencies_of_rotation(position: str):
    first, second = layers(build(position=position, pool="mean", kernel="positive"))
    assert first.relative.frequency is second.relative.frequency
    assert first.relative.cosine_weight is not second.relative.cosine_weight


def test_options_of_fourier_positions_reach_every_block():
    model = build(position="fourier", num_waves=7, longest_wave=3.0, wave_weight=2.0, pool="mean")
    for layer in layers(model):
        assert isinstance(layer.relative, LearnedRelativeKernel)
        kernel = layer.relative()
        assert kernel.frequency.shape == (2, 7, 2)
        assert float(kernel.frequency.detach().norm(dim=-1).min()) > 6.28 / 3.0 - 1e-3
        assert torch.allclose(kernel.amplitude.sum(dim=-1), torch.tensor([2.0, 2.0]))
    assert model(draw_images()).shape == (4, 3)


def test_the_weight_scale_of_rotation_reaches_every_block():
    model = build(position="rotation", rotation_weight_scale=0.0, depth=3)
    placed = [layer.relative for layer in layers(model) if layer.relative is not None]
    assert len(placed) == 2
    for relative in placed:
        assert isinstance(relative, LearnedRelativeKernel)
        assert (relative.cosine_weight == 0).all()


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_the_normalizer_of_rotary_reaches_every_block(pool: str):
    default, first, lengths = (
        build(
            position="rotary", rotary_normalizer=normalizer, pool=pool, kernel="positive", depth=3
        )
        for normalizer in (None, ROTARY_NORMALIZERS[0], "lengths")
    )
    placed = [layer.relative for layer in layers(lengths) if layer.relative is not None]
    assert len(placed) == (2 if pool == "class" else 3)
    for relative in placed:
        assert isinstance(relative, LearnedRelativeKernel)
        assert relative().normalizer == "lengths"
    for name, tensor in default.state_dict().items():
        assert torch.equal(lengths.state_dict()[name], tensor)
    images = draw_images()
    assert torch.equal(first(images), default(images))
    assert not torch.allclose(lengths(images), default(images))


@pytest.mark.parametrize("position", ["fourier", "rotation", "clipped", "table"])
def test_position_heads_of_blocks_with_positions(position: str):
    model = build(position=position, heads=4, position_heads=3, kernel="squared_relu")
    first, last = layers(model)
    assert (first.content_heads, first.position_heads) == (1, 3)
    assert (last.content_heads, last.position_heads) == (4, 0)
    assert model(draw_images()).shape == (4, 3)


@pytest.mark.parametrize(("kernel", "kind"), [("squared_relu", SquaredRelu), ("focused", Focused)])
def test_a_floor_reaches_the_kernel_of_every_block(kernel: str, kind: type):
    for layer in layers(build(kernel=kernel, epsilon=0.25)):
        assert isinstance(layer.kernel, kind)
        assert layer.kernel == kind(epsilon=0.25)


def test_layer_options_reach_every_block_in_which_they_have_an_effect():
    first, last = layers(build(query_key="normalized", gate=True, value_convolution=3))
    for layer in (first, last):
        assert "query_key.query_gain" in layer.state_dict()
        assert layer.gate is not None
    assert first.value_convolution.weight.shape == (8, 1, 3, 3)
    assert last.value_convolution is None  # Only the class token is read.
    assert layers(build(value_convolution=3, pool="mean"))[-1].value_convolution is not None
