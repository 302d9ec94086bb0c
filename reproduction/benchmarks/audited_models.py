"""Script that trains small models with known faults on digits, as examples for `teka audit`.

    python -m reproduction.benchmarks.audited_models --out runs/audited
    teka audit runs/audited/vit --data digits --image-size 32 --mode circular --html vit.html
    teka audit reproduction/benchmarks/audited_models.py:make_invariant_network \
        --weights runs/audited/invariant.safetensors --data digits --image-size 32 --mode circular

The models are a ViT, a Swin, a ResNet and a ConvNeXt from `transformers`, saved as model folders. A
fifth model, which consists of circular convolutions, has no fault: it is exactly invariant. Its
weights are saved as `invariant.safetensors`. The digits are centered in images of 32 × 32 pixels
and are never shifted during training.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from reproduction.benchmarks.measurement import run_script
from reproduction.study.model_metrics import measure_accuracy
from reproduction.training import train_custom_model
from teka.data import Normalize, load
from teka.files import read_yaml, write_json
from teka.training import Run

SIDE = 32
RECIPE = {
    "epochs": 20,
    "batch_size": 32,
    "weight_decay": 0.01,
    "label_smoothing": 0.05,
    "warmup": 0.3,
}
CONFIGS = read_yaml("configurations", Path(__file__).with_suffix(".yaml"))


class NormalizedClassifier(nn.Module):
    """Image classifier that normalizes its input images, with values from 0 to 1."""

    def __init__(self, model: nn.Module, normalization: Normalize) -> None:
        super().__init__()
        self.model = model
        self.normalization = normalization

    def forward(self, images: Tensor) -> Tensor:
        output = self.model(self.normalization(images))
        return output if isinstance(output, Tensor) else output.logits


def make_transformers_model(name: str) -> nn.Module:
    """Create a model from the library `transformers` with random weights.

    Args:
        name: Architecture, such as "vit", with a configuration in audited_models.yaml.
    """
    from transformers import AutoConfig, AutoModelForImageClassification

    config = AutoConfig.for_model(name, num_channels=1, num_labels=10, **CONFIGS[name])
    return AutoModelForImageClassification.from_config(config)


def make_invariant_network() -> nn.Module:
    """Create a convolutional network that is exactly invariant to circular shifts."""
    layers = []
    for in_channels, out_channels in ((1, 16), (16, 24), (24, 32)):
        convolution = nn.Conv2d(in_channels, out_channels, 5, padding=2, padding_mode="circular")
        layers += [convolution, nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def save_transformers_model(classifier: NormalizedClassifier, folder: Path) -> None:
    """Save a model and its preprocessing in a folder that `transformers` can load."""
    classifier.model.save_pretrained(folder)  # pyright: ignore[reportCallIssue]
    preprocessing = {
        "image_processor_type": "ViTImageProcessor",
        "size": {"height": SIDE, "width": SIDE},
        "image_mean": list(classifier.normalization.mean),
        "image_std": list(classifier.normalization.deviation),
    }
    write_json(folder / "preprocessor_config.json", preprocessing)


def main(*, out: Path = Path("runs/audited")) -> None:
    """Train and save the five models.

    Args:
        out: Output folder.
    """
    out.mkdir(parents=True, exist_ok=True)
    dataset = load("digits", image_size=SIDE, validation_size=0)

    def train(name: str, classifier: NormalizedClassifier, learning_rate: float) -> None:
        train_custom_model(
            classifier, dataset, Run.from_fields(learning_rate=learning_rate, **RECIPE)
        )
        share = measure_accuracy(classifier, dataset.test)
        print(f"{name}: accuracy {share:.1%}", flush=True)

    for name in CONFIGS:
        torch.manual_seed(0)
        classifier = NormalizedClassifier(
            make_transformers_model(name), Normalize.from_images(dataset.train.images)
        )
        train(name, classifier, 2e-3)
        save_transformers_model(classifier, out / name)
    torch.manual_seed(0)
    classifier = NormalizedClassifier(make_invariant_network(), Normalize((0.0,), (1.0,)))
    # The features of a small digit are small after averaging over all positions, and learn slowly.
    train("invariant", classifier, 1e-2)
    save_file(classifier.model.state_dict(), out / "invariant.safetensors")


if __name__ == "__main__":
    run_script(main)
