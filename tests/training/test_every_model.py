import itertools

import pytest
import torch

from teka.data import Dataset, Split
from teka.models.model_config import MODELS
from teka.training import Run, train

# Channels and side of the published data sets at the resolution of the paper.
SIZES = {"mnist": (1, 32), "cifar10": (3, 32)}
SMALL = {"dim": 8, "depth": 2, "heads": 2}
OPTIONS = {
    "performer": SMALL,
    "conv_performer": {"widths": (4, 8), "attention_heads": (0, 2)},
    "linformer": SMALL,
    "routing_transformer": SMALL,
    "alexnet": {},
    "resnet18": {},
}
OPTIONS["self_attention"] = SMALL


def make_dataset(name: str) -> Dataset:
    """Return random images of a data set's size with labels of ten classes."""
    channels, size = SIZES[name]
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(10, channels, size, size, generator=generator)
    split = Split(images, torch.arange(10))
    validation = split.take(torch.arange(2))
    return Dataset(name, split, validation, split, num_classes=10)


# The models alternate between gray and color images.
@pytest.mark.parametrize(("model", "data"), [*zip(OPTIONS, itertools.cycle(SIZES), strict=False)])
def test_one_step_changes_most_weights_of_every_model(model, data, tmp_path):
    run = Run.from_fields(
        data=data, model=model, batch_size=10, epochs=1, warmup=0.0, **OPTIONS[model]
    )
    dataset = make_dataset(data)
    torch.manual_seed(0)
    before = run.make_model(
        image_size=dataset.image_size, in_channels=dataset.in_channels, num_classes=10
    )
    result = train(run, tmp_path / "run", dataset=dataset, progress_bar=False)
    assert result["epochs"] == 1
    state = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=True)[
        "state_dict"
    ]
    trained = {name: w for name, w in before.named_parameters() if w.requires_grad}
    moved = [name for name, w in trained.items() if not torch.equal(state[f"model.{name}"], w)]
    assert len(moved) >= 0.9 * len(trained)


def test_vgg16_has_logits_and_a_gradient_for_every_parameter():
    run = Run.from_fields(data="cifar10", model="vgg16")
    with torch.device("meta"):  # without the memory of 134 million parameters
        model = run.make_model(image_size=(32, 32), in_channels=3, num_classes=10)
        logits = model(torch.zeros(2, 3, 32, 32))
    assert logits.shape == (2, 10)
    logits.sum().backward()
    assert all(
        weight.grad is not None and weight.grad.shape == weight.shape
        for weight in model.parameters()
    )


def test_every_registered_model_is_tested():
    assert {*OPTIONS, "vgg16"} == set(MODELS)
