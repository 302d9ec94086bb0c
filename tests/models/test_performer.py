import pytest
import torch
from tests.contracts.cases import pair_exists, relative_change
from tests.models.small_performer import SIZE, build, draw_images, kernel_for, layers
from torch import nn

from teka.functional.kernel import KERNELS
from teka.functional.relative import RELATIVES
from teka.models.performer import POOLS, POSITIONS
from teka.nn import Rotation

pytestmark = pytest.mark.usefixtures("as_users_run_this_file")


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("position", POSITIONS)
def test_images_that_are_not_square_become_logits(position: str, pool: str):
    model = build(position=position, pool=pool, kernel=kernel_for(position))
    assert model(draw_images()).shape == (4, 3)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("position", POSITIONS)
def test_after_two_steps_every_parameter_has_a_gradient_that_is_finite_and_not_zero(
    position: str, pool: str, kernel: str
):
    if not pair_exists(kernel, position if position in RELATIVES else None):
        with pytest.raises(ValueError, match=f"kernel is '{kernel}'|features of kernel is 1"):
            build(position=position, pool=pool, kernel=kernel)(draw_images())
        return
    model, labels = build(position=position, pool=pool, kernel=kernel), torch.tensor([0, 1, 2, 1])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for step in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(draw_images()), labels).backward()
        if step < 2:
            optimizer.step()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 1e-9, name


@pytest.mark.parametrize(("stem", "patch_size"), [("patch", 1), ("patch", 2), ("convolution", 1), ("convolution", 2)])
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("position", ["rotation", "clipped", "clipped_features", "none"])
def test_rolling_a_periodic_image_by_whole_patches_changes_no_logit(
    position: str, pool: str, stem: str, patch_size: int
):
    options = {"position": position, "pool": pool, "stem": stem, "patch_size": patch_size}
    model = build(periodic=True, **options).double().eval()
    for name, parameter in model.named_parameters():
        if name.endswith("distance_embedding"):
            nn.init.normal_(parameter)
    images = draw_images().double()
    for shift in ((0, 2), (2, 0), (4, 6), (-2, 4)):
        assert relative_change(model(images.roll(shift, (2, 3))), model(images)) < 1e-10
    # On the unbounded plane a roll cuts the image apart; and a model with patches sees a part of a patch.
    bounded = build(**options).double().eval()
    bounded.load_state_dict(model.state_dict())
    cut = relative_change(bounded(images.roll((2, 4), (2, 3))), bounded(images))
    assert (cut < 1e-10) == (position == "none" and stem == "patch")
    part = relative_change(model(images.roll(1, 3)), model(images))
    assert (part < 1e-10) == (patch_size == 1)


@pytest.mark.parametrize("position", ["absolute", "rotation_joint"])
def test_positions_that_are_not_relative_are_seen_or_refused_on_a_periodic_image(position: str):
    if position == "rotation_joint":
        with pytest.raises(ValueError, match="no periodic axis"):
            build(position=position, periodic=True, kernel="softmax")
        return
    model = build(position=position, periodic=True, kernel="softmax")
    assert relative_change(model(draw_images().roll(3, 3)), model(draw_images())) > 1e-4


@pytest.mark.parametrize("position", ["absolute", "rotation", "clipped"])
def test_position_reaches_the_logits_and_absence_of_it_is_seen_too(position: str):
    images, shuffled = draw_images(), draw_images().flatten(2).roll(17, 2).flip(2).unflatten(2, SIZE)
    model = build(position=position)
    for name, parameter in model.named_parameters():
        if name.endswith("distance_embedding"):
            nn.init.normal_(parameter)
    assert relative_change(model(shuffled), model(images)) > 1e-4
    assert relative_change(build(position="none")(shuffled), build(position="none")(images)) < 1e-5


def test_the_class_token_is_read_and_has_no_position():
    model = build(pool="class").eval()
    assert model.class_token is not None
    images = draw_images()
    before = model(images)
    with torch.no_grad():
        model.class_token.mul_(-1)
    assert not torch.allclose(model(images), before)
    assert build(pool="mean").class_token is None
    # The last block, of which only the class token is read, has no relative kernel; the others have.
    relatives = [layer.relative for layer in layers(build(depth=3))]
    assert [relative is None for relative in relatives] == [False, False, True]
    assert all(layer.relative is not None for layer in layers(build(depth=3, pool="mean")))


def test_frequencies_are_shared_by_the_layers_and_weights_are_not():
    relatives = [layer.relative for layer in layers(build(depth=3, pool="mean"))]
    assert all(isinstance(relative, Rotation) for relative in relatives)
    assert len({id(relative.frequency) for relative in relatives}) == 1
    assert len({id(relative.cosine_weight) for relative in relatives}) == 3


def test_a_model_of_the_papers_size_has_its_number_of_parameters():
    model = build((32, 32), 3, 10, dim=256, depth=6, heads=8, position="rotation", kernel="positive", dropout=0.1)
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(4.7e6, rel=0.02)


@pytest.mark.parametrize("position", POSITIONS)
def test_the_logits_are_those_of_a_last_block_that_computes_every_token(position: str):
    model = build(position=position, kernel=kernel_for(position)).double().eval()
    images = draw_images().double()
    tokens = model.grid.flatten(model.stem(images))
    if model.absolute_position is not None:
        tokens = model.absolute_position(tokens, model.grid)
    assert model.class_token is not None
    tokens = torch.cat([model.class_token.expand(4, 1, -1), tokens], dim=1)
    for block in model.blocks:
        tokens = block(tokens, model.grid, None, 1)
    assert relative_change(model(images), model.head(model.norm(tokens)[:, 0])) < 1e-12
