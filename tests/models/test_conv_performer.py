from typing import Any

import pytest
import torch

from teka.models import ConvPerformer, ModelConfig, load, save
from teka.models.conv_performer import WhiteningConv2d

SIZE = (8, 16)
OPTIONS: dict[str, Any] = {"widths": (6, 8), "attention_heads": (0, 2)}


def make_trained(dtype):
    """Return a small model in evaluation mode whose normalization has seen images."""
    torch.manual_seed(0)
    model = ConvPerformer(SIZE, 2, 5, **OPTIONS).to(dtype)
    images = torch.rand(12, 2, *SIZE, dtype=dtype)
    model.whitening.fit(images)
    model(images).square().sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.01).step()
    return model.eval()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-4)])
def test_logits_are_the_same_at_every_circular_shift(dtype, tolerance):
    model = make_trained(dtype)
    images = torch.rand(3, 2, *SIZE, dtype=dtype)
    shifts = [(dy, dx) for dy in range(SIZE[0]) for dx in range(SIZE[1])]
    shifted = torch.cat([images.roll(shift, (2, 3)) for shift in shifts])
    with torch.inference_mode():
        expected = model(images)
        logits = model(shifted).unflatten(0, (len(shifts), 3))
    assert (logits - expected).abs().max() <= tolerance * expected.abs().max()
    assert expected.std(dim=0).max() > 100 * tolerance  # the logits depend on the image


def test_whitened_patches_are_uncorrelated():
    images = torch.rand(200, 2, 6, 6).cumsum(dim=3) / 6
    whitening = WhiteningConv2d(2)
    whitening.fit(images)
    patches = whitening(images)[:, :8, :-1, :-1].movedim(1, -1).flatten(0, 2)
    covariance = patches.T.cov()
    assert torch.allclose(covariance, covariance.diag().diag(), atol=1e-3)
    assert covariance.diag().max() <= 1
    assert patches.mean(dim=0).abs().max() < 1e-3


def test_the_whitening_is_not_trained():
    model = ConvPerformer(SIZE, 2, 5, **OPTIONS)
    trained = {name for name, weights in model.named_parameters() if weights.requires_grad}
    assert not any(name.startswith("whitening") for name in trained)
    assert not any(name.endswith("first_norm.weight") for name in trained)
    assert "stages.0.first_norm.bias" in trained


def test_a_model_file_gives_the_same_logits(tmp_path):
    model = make_trained(torch.float32)
    config = ModelConfig("conv_performer", SIZE, 2, 5, options=OPTIONS)
    images = torch.rand(2, 2, *SIZE)
    loaded = load(save(model, tmp_path / "model", config))
    torch.testing.assert_close(loaded(images), model(images))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"attention_heads": (2,)},
            r"attention_heads must be one number for each of 2 widths, got \(2,\)",
        ),
        ({"widths": (0, 8)}, "widths must be at least 1, got 0"),
        (
            {"image_size": (8, 10)},
            r"image_size must be sides that are multiples of the stride = 4, got \(8, 10\)",
        ),
        ({"num_classes": 0}, "num_classes must be at least 1"),
    ],
)
def test_bad_arguments_are_errors(arguments, message):
    values = {"image_size": SIZE, "in_channels": 2, "num_classes": 5, **OPTIONS, **arguments}
    with pytest.raises(ValueError, match=message):
        ConvPerformer(**values)
