"""Train small models of known faults on digits, for `teka audit` to find the faults.

    python reproduction/benchmarks/audited_models.py [--out runs/audited] [--epochs 20]

A ViT, a Swin, a ResNet and a ConvNeXt from configurations of `transformers`, each written as its folder; a
convolutional network that cannot tell where anything is (circular, without strides, a mean at the end), as weights for
`reproduction/benchmarks/audited_models.py:invariant`; and the ResNet once more as an ONNX file. All see the 8 × 8 digits in the
middle of 32 × 32 pixels, never moved. Then, for one of them:

    teka audit runs/audited/vit --data digits --image-size 32 --mode circular --html vit.html
"""

import argparse
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from teka.data import Dataset, Normalize, load
from teka.files import write_json
from teka.provenance import provenance

SIDE, BATCH = 32, 32
FOLDER = Path("runs/audited")


def vit() -> nn.Module:
    """Patches of 4 × 4 pixels with learned absolute positions and a class token."""
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {
        "hidden_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "intermediate_size": 96,
    }
    return ViTForImageClassification(
        ViTConfig(image_size=SIDE, patch_size=4, num_channels=1, num_labels=10, **sizes)
    )


def swin() -> nn.Module:
    """Windows of 4 × 4 patches of 2 × 2 pixels, moved in every other layer, and merged patches."""
    from transformers import SwinConfig, SwinForImageClassification

    return SwinForImageClassification(
        SwinConfig(
            image_size=SIDE, patch_size=2, num_channels=1, num_labels=10, embed_dim=24, depths=[2, 2],
            num_heads=[2, 4], window_size=4,
        )
    )  # fmt: skip


def resnet() -> nn.Module:
    """Basic blocks with strides of 2, padded with zeros."""
    from transformers import ResNetConfig, ResNetForImageClassification

    return ResNetForImageClassification(
        ResNetConfig(
            num_channels=1, num_labels=10, embedding_size=16, hidden_sizes=[16, 32, 48], depths=[1, 1, 1],
            layer_type="basic",
        )
    )  # fmt: skip


def convnext() -> nn.Module:
    """Depthwise convolutions of 7 × 7 after a patch embedding of 2 × 2 pixels, with strides of 2 between stages."""
    from transformers import ConvNextConfig, ConvNextForImageClassification

    return ConvNextForImageClassification(
        ConvNextConfig(
            image_size=SIDE, patch_size=2, num_channels=1, num_labels=10, num_stages=3, hidden_sizes=[16, 32, 48],
            depths=[1, 1, 1],
        )
    )  # fmt: skip


def untrained_invariant() -> nn.Module:
    """Circular convolutions without strides, then the mean over all places."""
    layers: list[nn.Module] = []
    for before, after in ((1, 16), (16, 24), (24, 32)):
        layers += [nn.Conv2d(before, after, 5, padding=2, padding_mode="circular"), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def invariant() -> nn.Module:
    """The trained invariant network, for `teka audit reproduction/benchmarks/audited_models.py:invariant`."""
    network = untrained_invariant()
    network.load_state_dict(load_file(FOLDER / "invariant.safetensors"))
    return network.eval()


TRANSFORMERS: dict[str, Callable[[], nn.Module]] = {
    "vit": vit,
    "swin": swin,
    "resnet": resnet,
    "convnext": convnext,
}


def logits(model: nn.Module, images: Tensor) -> Tensor:
    """What a model says of images, taken out of what transformers' models return."""
    output = model(images)
    return output if isinstance(output, Tensor) else output.logits


def train(
    model: nn.Module, dataset: Dataset, normalization: Normalize, epochs: int, rate: float
) -> float:
    """Train in place; accuracy on the test images, not moved."""
    split, test = dataset.train, dataset.test
    images, test_images = normalization(split.images), normalization(test.images)
    steps = epochs * (len(split) // BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    model.train()
    for _ in range(steps):
        chosen = torch.randint(len(split), (BATCH,))
        loss = nn.functional.cross_entropy(
            logits(model, images[chosen]), split.labels[chosen], label_smoothing=0.05
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.inference_mode():
        return float((logits(model, test_images).argmax(1) == test.labels).double().mean())


class WithNormalization(nn.Module):
    """A model with its normalisation before it and nothing but logits after it, as an ONNX file should have both."""

    def __init__(self, model: nn.Module, normalization: Normalize) -> None:
        super().__init__()
        self.model, self.normalization = model, normalization

    def forward(self, images: Tensor) -> Tensor:
        """Logits of images in [0, 1]."""
        return logits(self.model, self.normalization(images))


def write(name: str, model: nn.Module, normalization: Normalize, folder: Path) -> None:
    """Write a trained model as its kind is written, and the ResNet as ONNX too."""
    if name not in TRANSFORMERS:
        save_file(model.state_dict(), folder / f"{name}.safetensors")
        return
    model.save_pretrained(folder / name)  # pyright: ignore[reportCallIssue]
    processor = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": SIDE, "width": SIDE},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(normalization.mean),
        "image_std": list(normalization.deviation),
    }
    write_json(folder / name / "preprocessor_config.json", processor)
    if name == "resnet":
        whole, example = (
            WithNormalization(model, normalization).eval(),
            torch.zeros(2, 1, SIDE, SIDE),
        )
        batch = torch.export.Dim("batch")
        torch.onnx.export(
            whole, (example,), folder / "resnet.onnx", input_names=["images"], output_names=["logits"],
            dynamic_shapes={"images": {0: batch}}, dynamo=True, external_data=False,
        )  # fmt: skip


def main() -> None:
    """Train and write all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dataset = load("digits", image_size=SIDE, validation_size=0)
    options.out.mkdir(parents=True, exist_ok=True)
    models: dict[str, object] = {}
    for name, make in (*TRANSFORMERS.items(), ("invariant", untrained_invariant)):
        torch.manual_seed(0)
        started, model = time.monotonic(), make()
        # A mean over all places of a small digit is small, and learns slowly.
        normalization, rate = Normalize.of(dataset.train.images), 2e-3
        if name not in TRANSFORMERS:
            normalization, rate = Normalize((0.0,), (1.0,)), 1e-2
        accuracy = train(model, dataset, normalization, options.epochs, rate)
        write(name, model, normalization, options.out)
        parameters, seconds = (
            sum(one.numel() for one in model.parameters()),
            round(time.monotonic() - started, 1),
        )
        models[name] = {"parameters": parameters, "accuracy": accuracy, "seconds": seconds}
        print(f"{name}: {accuracy:.1%}, {parameters:,} parameters, {seconds} s")
    command = shlex.join(["python", *sys.argv])
    write_json(
        options.out / "models.json",
        {**provenance(command), "epochs": options.epochs, "models": models},
    )


if __name__ == "__main__":
    main()
