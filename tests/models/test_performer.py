from typing import Any

import pytest
import torch
from tests.contracts.cases import pair_exists, relative_change
from torch import Tensor, nn

from teka import Grid
from teka.functional.kernel import KERNELS
from teka.functional.relative import RELATIVES
from teka.models import Performer
from teka.models.performer import POOLS, POSITIONS
from teka.nn import Rotation, redraw_projections

SIZE = (6, 10)


def build(image_size: int | tuple[int, int] = SIZE, in_channels: int = 2, num_classes: int = 3, **options: Any):
    torch.manual_seed(0)
    options = {"dim": 8, "depth": 2, "heads": 2, "position": "rotation", **options}
    return Performer(image_size, in_channels, num_classes, **options)


def kernel_for(position: str) -> str:
    return "squared_relu" if pair_exists("squared_relu", position if position in RELATIVES else None) else "positive"


def draw_images(height: int = 6, width: int = 10) -> Tensor:
    return torch.randn(4, 2, height, width, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("position", POSITIONS)
def test_images_that_are_not_square_become_logits(position: str, pool: str):
    model = build(position=position, pool=pool, kernel=kernel_for(position))
    assert model(draw_images()).shape == (4, 3)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("position", POSITIONS)
def test_after_one_step_every_parameter_has_a_gradient_that_is_finite_and_not_zero(
    position: str, pool: str, kernel: str
):
    if not pair_exists(kernel, position if position in RELATIVES else None):
        with pytest.raises(ValueError, match=f"kernel is '{kernel}'"):
            build(position=position, pool=pool, kernel=kernel)(draw_images())
        return
    model, labels = build(position=position, pool=pool, kernel=kernel), torch.tensor([0, 1, 2, 1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(draw_images()), labels).backward()
        if step == 0:
            optimizer.step()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 1e-9, name


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("position", ["rotation", "clipped", "clipped_features", "none"])
def test_on_a_periodic_grid_no_shift_of_the_image_changes_the_logits(position: str, pool: str):
    model = build(position=position, pool=pool).double().eval()
    for name, parameter in model.named_parameters():
        if name.endswith("distance_embedding"):
            nn.init.normal_(parameter)
    images = draw_images().double()
    unbounded = relative_change(model(images.roll((2, 3), (2, 3))), model(images))
    model.grid = Grid(model.grid.shape, periodic=True)
    for shift in ((0, 1), (1, 0), (2, 3), (-1, 4)):
        assert relative_change(model(images.roll(shift, (2, 3))), model(images)) < 1e-10
    # On the unbounded plane a roll cuts the image apart, which only a model without position does not see.
    assert (unbounded < 1e-10) == (position == "none")


@pytest.mark.parametrize("position", ["absolute", "rotation", "clipped"])
def test_position_reaches_the_logits_and_absence_of_it_is_seen_too(position: str):
    images, shuffled = draw_images(), draw_images().flatten(2).roll(17, 2).flip(2).unflatten(2, SIZE)
    model = build(position=position)
    for name, parameter in model.named_parameters():
        if name.endswith("distance_embedding"):
            nn.init.normal_(parameter)
    assert relative_change(model(shuffled), model(images)) > 1e-3
    assert relative_change(build(position="none")(shuffled), build(position="none")(images)) < 1e-5


def test_the_class_token_is_read_and_has_no_position():
    model = build(pool="class").eval()
    assert model.class_token is not None
    images = draw_images()
    before = model(images)
    with torch.no_grad():
        model.class_token.add_(1)
    assert not torch.allclose(model(images), before)
    assert build(pool="mean").class_token is None
    # The last block, of which only the class token is read, has no relative kernel; the others have.
    relatives = [block.attention.relative for block in build(depth=3).blocks]
    assert [relative is None for relative in relatives] == [False, False, True]
    assert all(block.attention.relative is not None for block in build(depth=3, pool="mean").blocks)


def test_frequencies_are_shared_by_the_layers_and_weights_are_not():
    relatives = [block.attention.relative for block in build(depth=3, pool="mean").blocks]
    assert all(isinstance(relative, Rotation) for relative in relatives)
    assert len({id(relative.frequency) for relative in relatives}) == 1
    assert len({id(relative.cosine_weight) for relative in relatives}) == 3


def test_a_model_of_the_papers_size_has_its_number_of_parameters():
    model = build((32, 32), 3, 10, dim=256, depth=6, heads=8, position="rotation", kernel="positive", dropout=0.1)
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(4.7e6, rel=0.02)


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
    assert torch.allclose(tokens[1, 8], (model.stem.weight * patch).sum((1, 2, 3)) + model.stem.bias, atol=1e-5)


def test_a_stem_of_ones_own_takes_the_place_of_the_patches():
    stem = nn.Sequential(nn.Conv2d(2, 5, 3, padding=1), nn.GELU(), nn.Conv2d(5, 8, 2, 2))
    model = build(stem=stem, patch_size=2)
    assert model.stem is stem
    assert model(draw_images()).shape == (4, 3)


def test_options_reach_the_layers():
    model = build(
        kernel="positive", num_features=7, dim_head=3, mlp_ratio=2.0, qkv_bias=False, dropout=0.2, backend="dense"
    )
    for block in model.blocks:
        assert block.attention.kernel.num_features == 7
        assert block.attention.dim_head == 3
        assert block.attention.value.bias is None
        assert block.attention.backend == "dense"
        assert block.mlp[0].out_features == 16
        assert block.attention.dropout.p == 0.2
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
    # The only block is the last, of which the class token alone is read: the position could have no effect.
    ({"depth": 1, "pool": "class", "position": "rotation"}, "depth is 1"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[str(options) for options, _ in BAD])
def test_a_bad_option_is_an_error_that_names_it(options: dict[str, Any], message: str, as_users_run_it: None):
    with pytest.raises(ValueError, match=message):
        build(**options)


@pytest.mark.parametrize("size", [(4, 2, 10, 6), (4, 3, 6, 10), (2, 6, 10), (4, 2, 6, 11)])
def test_images_of_another_size_are_refused(size: tuple[int, ...], as_users_run_it: None):
    with pytest.raises(ValueError, match=r"images has shape .* expected \(batch, 2, 6, 10\)"):
        build()(torch.zeros(size))
