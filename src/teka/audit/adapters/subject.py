"""A model under audit: a function of pictures in [0, 1], and what is known of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from teka.audit.adapters.preprocessing import Preprocessing
from teka.audit.function import weights_hash
from teka.codec import encode

# One side or (height, width); None leaves it to the model.
Size = int | tuple[int, int] | None


@dataclass(frozen=True, eq=False)
class Subject:
    """A model under audit.

    Args:
        name: What to call it.
        kind: What it was read from, such as "transformers", "timm", "torchvision", "onnx" or "factory".
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
        loads_at_input_size: Whether data sets are loaded at its input size, in whole levels, as its training had them.
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
    loads_at_input_size: bool = False

    def taking_unplaced_images(self) -> "Subject":
        """The same model as a function of images as the data have them: `transform.place` becomes a part of it."""
        function, place = self.function, self.transform.place
        # Layers can be looked into only if the function is a module.
        is_module = isinstance(function, nn.Module)
        placing = Wrapped(place, function) if is_module else lambda images: function(place(images))
        return replace(self, function=placing, input_size=None, in_channels=None)

    def describe(self) -> dict[str, object]:
        """What a report keeps of the model, ready for JSON."""
        kept = ("name", "kind", "input_size", "in_channels", "num_classes", "note")
        parameters = None if self.module is None else sum(one.numel() for one in self.module.parameters())
        facts = {name: encode(getattr(self, name)) for name in kept}
        return {**facts, "parameters": parameters, "weights_sha256": self.weights_hash}


class Wrapped(nn.Module):
    """A model with a step before it, and the logits taken out of what it returns."""

    def __init__(self, before: Callable[[Tensor], Tensor], model: nn.Module) -> None:
        super().__init__()
        self.before, self.model = before, model
        # The mode is the model's own: a wrapper must not hide that it was left in training mode.
        self.training = model.training

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> object:
        """What the model says of images in [0, 1]."""
        answer = self.model(self.before(images))
        return getattr(answer, "logits", answer)


def subject_of_module(
    module: nn.Module,
    name: str,
    kind: str,
    transform: Preprocessing,
    input_size: tuple[int, int] | None,
    device: torch.device | str | None,
    *,
    class_names: tuple[str, ...] | None = None,
    num_classes: int | None = None,
    note: str = "",
    loads_at_input_size: bool = False,
) -> Subject:
    """The subject of a module, which is moved to the device, with the normalisation of its images before it."""
    if device is not None:
        module = module.to(device)
    return Subject(
        name,
        kind,
        Wrapped(transform.normalize, module),
        module,
        input_size,
        transform.in_channels,
        class_names,
        len(class_names) if num_classes is None and class_names is not None else num_classes,
        transform,
        weights_hash(module),
        note,
        loads_at_input_size,
    )


def spoken_names(labels: object) -> tuple[str, ...] | None:
    """The names of `id2label` in a config, unless there are none or the library's own LABEL_0, LABEL_1 and so on."""
    by_place = {str(label): str(name) for label, name in labels.items()} if isinstance(labels, Mapping) else {}
    places = [str(place) for place in range(len(by_place))]
    if not by_place or set(by_place) != set(places) or by_place == {place: f"LABEL_{place}" for place in places}:
        return None
    return tuple(by_place[place] for place in places)
