"""Config, model and image processor for transformers' Auto classes."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForImageClassification,
    BatchFeature,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.image_processing_utils import BaseImageProcessor
from transformers.modeling_outputs import ImageClassifierOutput

from teka.checks import check_sizes
from teka.codec import decode, encode
from teka.errors import unknown_name, wrong_value
from teka.models import ModelConfig, load, read_config
from teka.models.model_config import options_class
from teka.prediction.pictures import read_images

if TYPE_CHECKING:
    from PIL.Image import Image

SAVED = (
    "model",
    "image_size",
    "in_channels",
    "options",
    "pictures",
)  # what a config of transformers has not already
# Keys that transformers writes into files without an attribute of every config.
CONFIG_KEYS = frozenset(
    {
        "attn_implementation",
        "auto_map",
        "experts_implementation",
        "quantization_config",
        "use_cache",
    }
)
PROCESSOR_KEYS = {"auto_map", "feature_extractor_type", "image_processor_type", "processor_class"}


class TekaConfig(PretrainedConfig):
    """The config of a teka model for transformers.

    The number of classes and their names are its labels, `num_labels` or `id2label`.

    >>> from teka.integrations.transformers import TekaConfig
    >>> config = TekaConfig(image_size=8, num_channels=1, num_labels=5)
    >>> config.image_size, config.in_channels, config.model_config.num_classes
    ([8, 8], 1, 5)

    Args:
        model: A name of `teka.models.model_config.MODELS`.
        image_size: Height and width of its images in pixels, or one number for both.
        in_channels: Number of channels of its images; `num_channels` is another name for it.
        options: The model's own options by name, such as `dim` and `depth`.
        pictures: How pictures become the model's images; see `teka.prediction.PictureSettings`.
        kwargs: Arguments of `PretrainedConfig`, such as `id2label` or `num_labels`.

    Raises:
        ValueError: An unknown argument, or a value that the model does not take.
    """

    model_type = "teka"
    attribute_map: ClassVar[dict[str, str]] = {"num_channels": "in_channels"}

    def __init__(
        self,
        model: str = "performer",
        image_size: int | Sequence[int] = (32, 32),
        in_channels: int = 3,
        options: Mapping[str, object] | None = None,
        pictures: Mapping[str, object] | None = None,
        **kwargs: Any,
    ) -> None:
        in_channels = kwargs.pop("num_channels", in_channels)
        for name in kwargs:
            if name.startswith("_") or name in _config_keys():
                continue
            if name in options_class(model).__dataclass_fields__:
                raise wrong_value(
                    name,
                    kwargs[name],
                    f"an entry of options, options={{{name!r}: {kwargs[name]!r}}}",
                )
            known = (*SAVED, "num_channels", "num_labels", "id2label", "label2id")
            raise unknown_name("argument of TekaConfig", name, known)
        self.model, self.image_size, self.in_channels = model, _both_sides(image_size), in_channels
        self.options = {"dim": 64, "depth": 4, "heads": 4} if options is None else dict(options)
        self.pictures = None if pictures is None else dict(pictures)
        super().__init__(**kwargs)
        _ = self.model_config  # checks all values

    @classmethod
    def of(cls, config: ModelConfig) -> "TekaConfig":
        """The config of a teka model."""
        names = config.class_names or tuple(map(str, range(config.num_classes)))
        labels = {
            "id2label": dict(enumerate(names)),
            "label2id": {name: label for label, name in enumerate(names)},
        }
        given = encode(config)
        return cls(**{name: given[name] for name in SAVED}, **labels)

    @property
    def model_config(self) -> ModelConfig:
        """What teka makes the model of; a ValueError for options that do not fit."""
        given = {name: getattr(self, name) for name in SAVED}
        labels: dict[Any, str] = self.id2label or {}
        if sorted(labels) != list(range(len(labels))):
            raise wrong_value("id2label", labels, "a name for each class, with keys 0, 1, 2, …")
        names = [labels[label] for label in range(len(labels))]
        return decode(
            ModelConfig, {**given, "num_classes": len(labels), "class_names": names}, "config"
        )


class TekaForImageClassification(PreTrainedModel):
    """An image classifier of teka for `from_pretrained`, `Trainer` and `pipeline` of transformers.

    `activation_checkpointing_enable` recomputes transformer blocks in the backward pass; models without such blocks do
    not support it.

    >>> from teka.integrations.transformers import TekaForImageClassification
    >>> model = TekaForImageClassification.from_teka("digits")
    >>> model(torch.rand(2, 1, 16, 16)).logits.shape
    torch.Size([2, 10])
    """

    config_class = TekaConfig
    main_input_name = "pixel_values"
    base_model_prefix = "model"
    is_made = False

    def __init__(self, config: TekaConfig) -> None:
        super().__init__(config)
        # While it makes a model, `from_pretrained(dtype=...)` has this as the default.
        self.model = config.model_config.make_model().to(torch.get_default_dtype())
        self.supports_gradient_checkpointing = bool(_transformer_blocks(self.model))
        self.post_init()
        self.is_made = True

    @classmethod
    def from_teka(cls, path: str | Path) -> "TekaForImageClassification":
        """The model of a model file, or one that comes with teka; a ValueError for one that cannot be read."""
        made = cls(TekaConfig.of(read_config(path)))
        made.model.load_state_dict(load(path).state_dict())
        return made.eval()

    def forward(
        self,
        pixel_values: Float[Tensor, "batch channels *sides"],
        labels: Shaped[Tensor, "batch *classes"] | None = None,
        return_dict: bool | None = None,
    ) -> ImageClassifierOutput | tuple:
        """Return the logits, and with labels the loss of the config's `problem_type`, by default cross-entropy."""
        logits = self.model(pixel_values)
        loss = None if labels is None else self.loss_function(labels, logits, self.config)
        return_dict = self.config.return_dict if return_dict is None else return_dict
        output = ImageClassifierOutput(loss=loss, logits=logits)  # pyright: ignore[reportArgumentType]
        return output if return_dict else output.to_tuple()

    def _set_gradient_checkpointing(
        self,
        enable: bool = True,
        gradient_checkpointing_func: Callable = checkpoint,
        every_n_layers: int = 1,
    ) -> None:
        blocks = _transformer_blocks(self.model)
        for index, block in enumerate(blocks):
            attributes: dict[str, Any] = vars(block)
            for name in ("gradient_checkpointing", "_gradient_checkpointing_func", "forward"):
                attributes.pop(name, None)
            if enable and index % every_n_layers == 0:
                attributes["gradient_checkpointing"] = True
                attributes["_gradient_checkpointing_func"] = gradient_checkpointing_func
                attributes["forward"] = MethodType(_forward_block, block)

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """Where a file had no numbers, those of a new model; one that is being made has them already."""
        if not self.is_made:
            return
        state = self.model.state_dict(keep_vars=True)
        missing = {
            name: one
            for name, one in state.items()
            if not getattr(one, "_is_hf_initialized", False)
        }
        if missing:
            new = self.config.model_config.make_model().state_dict()
            for name, one in missing.items():
                one.copy_(new[name])


def _forward_block(block: Any, *args: object, **kwargs: object) -> object:
    forward = partial(type(block).forward, block)
    if block.training and torch.is_grad_enabled():
        return block._gradient_checkpointing_func(partial(forward, **kwargs), *args)
    return forward(*args, **kwargs)


def _transformer_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of a model that have an MLP: those that can be recomputed in the backward pass."""
    return [block for block in getattr(model, "blocks", ()) if hasattr(block, "mlp")]


@cache
def _config_keys() -> frozenset[str]:
    """Return the keyword arguments that every config of transformers takes."""
    return frozenset(CONFIG_KEYS).union(
        vars(PretrainedConfig()), vars(PretrainedConfig), ("num_labels", "torch_dtype")
    )


def _both_sides(image_size: object) -> list[int]:
    """Return one side as height and width, and other sizes as they are."""
    sides: list[Any] = (
        list(image_size) if isinstance(image_size, Sequence) else [image_size, image_size]
    )
    check_sizes({f"image_size[{axis}]": side for axis, side in enumerate(sides)})
    return sides


class TekaImageProcessor(BaseImageProcessor):
    """An image processor that turns pictures into a teka model's images, with intensities in [0, 1].

    It does not need torchvision.

    >>> from PIL import Image
    >>> from teka.integrations.transformers import TekaImageProcessor
    >>> processor = TekaImageProcessor(image_size=(16, 24), in_channels=3)
    >>> processor(Image.new("L", (100, 50), 255))["pixel_values"].shape
    torch.Size([1, 3, 16, 24])

    Args:
        image_size: Height and width, or one number for both.
        in_channels: 1 for gray, 3 for color.
        pictures: How pictures become images; see `teka.prediction.PictureSettings`.
        kwargs: Keys that transformers writes into the file of every image processor.

    Raises:
        ValueError: An unknown argument, or a size that is not a positive integer.
    """

    model_input_names = ("pixel_values",)

    def __init__(
        self,
        image_size: int | Sequence[int] = (32, 32),
        in_channels: int = 3,
        pictures: Mapping[str, object] | None = None,
        **kwargs: Any,
    ) -> None:
        for name in kwargs:
            if not name.startswith("_") and name not in PROCESSOR_KEYS:
                raise unknown_name(
                    "argument of TekaImageProcessor",
                    name,
                    ("image_size", "in_channels", "pictures"),
                )
        super().__init__(**kwargs)
        self.image_size, self.in_channels = _both_sides(image_size), in_channels
        self.pictures = None if pictures is None else dict(pictures)

    @classmethod
    def of(cls, config: TekaConfig) -> "TekaImageProcessor":
        """The one that fits a model."""
        return cls(config.image_size, config.in_channels, config.pictures)

    def preprocess(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        images: "str | Path | Image | Sequence[str | Path | Image]",
        return_tensors: str | None = "pt",
        **_: object,  # what pipelines hand to every image processor
    ) -> BatchFeature:
        """`pixel_values` of one picture or several: files, or pictures that Pillow has opened."""
        many: list[Any] = list(images) if isinstance(images, list | tuple) else [images]
        sizes = {"image_size": tuple(self.image_size), "in_channels": self.in_channels}
        values = read_images(many, self.pictures, **sizes)
        return BatchFeature({"pixel_values": values}, tensor_type=return_tensors)

    __call__ = preprocess  # pyright: ignore[reportAssignmentType]


def register_models() -> None:
    """Make the Auto classes know "teka"."""
    AutoConfig.register(TekaConfig.model_type, TekaConfig, exist_ok=True)
    AutoModelForImageClassification.register(TekaConfig, TekaForImageClassification, exist_ok=True)
    AutoImageProcessor.register(
        TekaConfig, slow_image_processor_class=TekaImageProcessor, exist_ok=True
    )
