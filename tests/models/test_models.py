from typing import Any

import pytest
import torch
from torch import Tensor, nn

from teka.models.model_config import MODELS, model_class

TRANSFORMER = {"dim": 8, "depth": 2, "heads": 2}
# Small options of each model, so that a test takes milliseconds.
SMALL: dict[str, dict[str, Any]] = {
    "performer": TRANSFORMER,
    "conv_performer": {"widths": (4, 8), "attention_heads": (0, 2)},
    "alexnet": {},
    "vgg16": {"width": 4, "hidden": 8},
    "resnet18": {"width": 4},
    "linformer": {**TRANSFORMER, "num_projected": 5},
    "routing_transformer": TRANSFORMER,
    "self_attention": TRANSFORMER,
}
# Smallest sides of models with pooling layers without padding.
SMALLEST_SIDE = {"alexnet": 29, "vgg16": 32}
# Sides of these models must be multiples of a block size.
BLOCKS = {"self_attention": 2, "conv_performer": 4}


def build(
    name: str,
    image_size: int | tuple[int, int] = 32,
    in_channels: int = 3,
    *,
    seed: int = 0,
    **options: Any,
) -> nn.Module:
    torch.manual_seed(seed)
    return model_class(name)(image_size, in_channels, 5, **{**SMALL[name], **options})


def draw_images(batch: int = 4, channels: int = 3, height: int = 32, width: int = 32) -> Tensor:
    return torch.randn(batch, channels, height, width, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", MODELS)
def test_image_sizes(name: str):
    for size, channels in (
        ((32, 32), 3),
        ((32, 37), 1),
        ((28, 28), 1),
        ((16, 16), 3),
        ((14, 14), 1),
    ):
        smallest, block = SMALLEST_SIDE.get(name, 1), BLOCKS.get(name, 1)
        if min(size) < smallest or any(side % block for side in size):
            expected = (
                f"at least {smallest} pixels"
                if min(size) < smallest
                else f"multiples of .* = {block}"
            )
            with pytest.raises(ValueError, match=rf"image_size must be .* {expected}"):
                build(name, size, channels)
        else:
            assert build(name, size, channels)(draw_images(2, channels, *size)).shape == (2, 5), (
                size
            )


@pytest.mark.parametrize("name", SMALLEST_SIDE)
def test_the_smallest_side(name: str):
    side = SMALLEST_SIDE[name]
    model = build(name, side)
    assert model(draw_images(2, 3, side, side)).shape == (2, 5)
    with pytest.raises(RuntimeError, match="too small"):
        model.get_submodule("features")(draw_images(2, 3, side - 1, side - 1))


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_has_a_finite_gradient_after_one_step(name: str):
    model, images, labels = build(name), draw_images(), torch.tensor([0, 1, 4, 1])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        if step == 0:
            optimizer.step()
    for parameter_name, parameter in model.named_parameters():
        # On periodic grids, frequencies are rounded, so that they have no gradient.
        is_rounded = name == "conv_performer" and parameter_name.endswith("relative.frequency")
        if is_rounded or not parameter.requires_grad:
            continue
        assert parameter.grad is not None, parameter_name
        assert torch.isfinite(parameter.grad).all(), parameter_name
        assert parameter.grad.abs().max() > 1e-9, parameter_name


@pytest.mark.parametrize("name", MODELS)
def test_evaluation_is_deterministic_and_independent_of_the_batch(name: str):
    model, images = build(name).double(), draw_images().double()
    model(images)  # Updates statistics and centroids.
    model.eval()
    logits = model(images)
    assert torch.equal(model(images), logits)
    torch.testing.assert_close(model(images[2:3]), logits[2:3], rtol=1e-8, atol=0)
    assert not torch.allclose(logits[:1], logits[2:3], rtol=1e-4, atol=0)


@pytest.mark.parametrize("name", MODELS)
def test_a_loaded_state_dict_gives_the_same_logits(name: str):
    model, other, images = build(name), build(name, seed=1), draw_images()
    model(images)  # Updates statistics and centroids.
    assert not torch.allclose(other.eval()(images), model.eval()(images), rtol=1e-4, atol=0)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(images), model(images))


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients_are_finite_under_autocast(name: str):
    model = build(name)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(30 * draw_images()).float().square().mean()
    loss.backward()
    assert torch.isfinite(loss)
    assert all(
        torch.isfinite(parameter.grad).all()
        for parameter in model.parameters()
        if parameter.grad is not None
    )


@pytest.mark.parametrize("name", MODELS)
def test_images_with_another_shape_are_an_error(name: str):
    model = build(name)
    for shape in ((2, 1, 32, 32), (2, 3, 33, 32), (2, 3, 32, 31)):
        with pytest.raises(ValueError, match=r"images must have shape \(batch, 3, 32, 32\)"):
            model(torch.zeros(shape))


@pytest.mark.parametrize("name", MODELS)
def test_sizes_of_0_are_errors(name: str):
    for argument, sizes in (
        ("image_size", (0, 3, 5)),
        ("in_channels", (32, 0, 5)),
        ("num_classes", (32, 3, 0)),
    ):
        with pytest.raises(ValueError, match=rf"{argument} must be .*got 0"):
            model_class(name)(*sizes, **SMALL[name])
    for argument, size in SMALL[name].items():
        if isinstance(size, int):
            with pytest.raises(ValueError, match=rf"{argument} must be .*got 0"):
                build(name, **{argument: 0})
