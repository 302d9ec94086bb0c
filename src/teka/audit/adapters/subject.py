"""A model under audit: a function of pictures in [0, 1], and what is known of it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from teka.audit.adapters.preprocessing import Preprocessing
from teka.audit.measure.checkpoint import weights_hash


@dataclass(frozen=True, eq=False)
class Subject:
    """A model under audit.

    Args:
        name: What to call it.
        kind: What it was read from: "teka run", "teka model file", "transformers", "timm", "torchvision", "onnx" or
            "factory".
        function: Takes images in [0, 1] of the model's channels and size, (B, C, H, W), normalises them, and returns
            what the model says; a `torch.nn.Module` wherever `module` is one.
        module: The model's module; None if it is none.
        input_size: Height and width of its images; None if it takes any.
        in_channels: Channels of its images; None if that is not known.
        class_names: A name for each class, if they have any.
        num_classes: Number of its classes; None if that is not known.
        transform: What is done to images before the function sees them, and, as part of it, after.
        weights_hash: SHA-256 of its weights, if they can be read.
        note: What else a reader should know of how it was read, a sentence or "".
    """

    name: str
    kind: str
    function: Callable[[Tensor], object]
    module: nn.Module | None = None
    input_size: tuple[int, int] | None = None
    in_channels: int | None = None
    class_names: tuple[str, ...] | None = None
    num_classes: int | None = None
    transform: Preprocessing = field(default_factory=Preprocessing)
    weights_hash: str | None = None
    note: str = ""

    def taking_unplaced_images(self) -> "Subject":
        """The same model as a function of images as the data have them: `transform.place` becomes a part of it."""
        function = self.function
        placing = Placing(self.transform, function) if isinstance(function, nn.Module) else _placing(self)
        return replace(self, function=placing, input_size=None, in_channels=None)

    def describe(self) -> dict[str, object]:
        """What a report keeps of the model, ready for JSON."""
        parameters = None if self.module is None else sum(one.numel() for one in self.module.parameters())
        return {
            "name": self.name,
            "kind": self.kind,
            "parameters": parameters,
            "input_size": None if self.input_size is None else list(self.input_size),
            "in_channels": self.in_channels,
            "num_classes": self.num_classes,
            "weights_sha256": self.weights_hash,
            "note": self.note,
        }


class Normalized(nn.Module):
    """A module with the normalisation of its images before it, and its logits taken out of what it returns.

    Args:
        model: The module.
        transform: Its `normalize` is used.
    """

    def __init__(self, model: nn.Module, transform: Preprocessing) -> None:
        super().__init__()
        self.model, self.transform = model, transform
        # The mode is the model's own: a wrapper must not hide that it was left in training mode.
        self.training = model.training

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> object:
        """What the model says of images in [0, 1]."""
        answer = self.model(self.transform.normalize(images))
        return getattr(answer, "logits", answer)


class Placing(nn.Module):
    """A function of placed images as one of images as the data have them.

    Args:
        transform: Its `place` is used.
        function: The function, a module.
    """

    def __init__(self, transform: Preprocessing, function: nn.Module) -> None:
        super().__init__()
        self.transform, self.function = transform, function
        self.training = function.training

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> object:
        """What the model says of images of any size in [0, 1]."""
        return self.function(self.transform.place(images))


def _placing(subject: Subject) -> Callable[[Tensor], object]:
    def function(images: Tensor) -> object:
        return subject.function(subject.transform.place(images))

    return function


def subject_of_module(
    module: nn.Module,
    *,
    name: str,
    kind: str,
    transform: Preprocessing,
    input_size: tuple[int, int] | None,
    device: torch.device | str | None,
    class_names: tuple[str, ...] | None = None,
    num_classes: int | None = None,
    note: str = "",
) -> Subject:
    """The subject of a module.

    Args:
        module: The module; it is moved to the device.
        name: What to call it.
        kind: What it was read from.
        transform: What is done to its images.
        input_size: Height and width of its images; None if it takes any.
        device: Where it runs; None leaves it.
        class_names: A name for each class.
        num_classes: Number of its classes.
        note: What else a reader should know.
    """
    if device is not None:
        module = module.to(device)
    function = Normalized(module, transform)
    return Subject(
        name,
        kind,
        function,
        module,
        input_size,
        transform.in_channels,
        class_names,
        num_classes,
        transform,
        weights_hash(module),
        note,
    )
