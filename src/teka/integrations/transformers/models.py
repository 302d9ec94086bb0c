"""teka's models, their files and their pictures, as transformers' Auto classes know them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy
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

from teka.codec import decode, encode
from teka.models import ModelConfig, load, read_config
from teka.prediction.pictures import read_images

if TYPE_CHECKING:
    from PIL.Image import Image

SAVED = ("model", "image_size", "in_channels", "options", "pictures")  # what a config of transformers has not already


class TekaConfig(PretrainedConfig):
    """`teka.models.ModelConfig` for transformers: the number of classes and their names are its labels.

    >>> from teka.integrations.transformers import TekaConfig
    >>> from teka.models import read_config
    >>> config = TekaConfig.of(read_config("digits"))
    >>> config.num_labels, config.image_size, config.model_config.model
    (10, [16, 16], 'performer')

    Args:
        model: A name of `teka.models.model_config.MODELS`.
        image_size: Pixels along each axis of its images.
        in_channels: Channels of its images.
        options: The model's own options by name.
        pictures: How pictures become the model's images; see `teka.prediction.PictureSettings`.
        kwargs: What every config of transformers takes, such as `id2label` or `num_labels`.
    """

    model_type = "teka"

    def __init__(
        self,
        model: str = "performer",
        image_size: Sequence[int] = (32, 32),
        in_channels: int = 3,
        options: Mapping[str, object] | None = None,
        pictures: Mapping[str, object] | None = None,
        **kwargs: Any,
    ) -> None:
        self.model, self.image_size, self.in_channels = model, list(image_size), in_channels
        self.options = {"dim": 64, "depth": 4, "heads": 4} if options is None else dict(options)
        self.pictures = None if pictures is None else dict(pictures)
        super().__init__(**kwargs)

    @classmethod
    def of(cls, config: ModelConfig) -> "TekaConfig":
        """The config of a teka model."""
        names = config.class_names or tuple(map(str, range(config.num_classes)))
        labels = {"id2label": dict(enumerate(names)), "label2id": {name: label for label, name in enumerate(names)}}
        given = encode(config)
        return cls(**{name: given[name] for name in SAVED}, **labels)

    @property
    def model_config(self) -> ModelConfig:
        """What teka makes the model of; a ValueError for options that do not fit."""
        given = {name: getattr(self, name) for name in SAVED}
        labels: dict[Any, str] = self.id2label or {}
        names = [labels[label] for label in range(len(labels))]
        return decode(ModelConfig, {**given, "num_classes": len(labels), "class_names": names}, "config")


class TekaForImageClassification(PreTrainedModel):
    """A model of teka's with the interface of transformers: `from_pretrained`, `Trainer`, `pipeline`.

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
        labels: Int[Tensor, "batch"] | None = None,
        return_dict: bool = True,
    ) -> ImageClassifierOutput | tuple:
        """Logits, and with labels their cross-entropy."""
        logits = self.model(pixel_values)
        loss = None if labels is None else cross_entropy(logits, labels)
        output = ImageClassifierOutput(loss=loss, logits=logits)  # pyright: ignore[reportArgumentType]
        return output if return_dict else output.to_tuple()

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """Where a file had no numbers, those of a new model; one that is being made has them already."""
        if not self.is_made:
            return
        state = self.model.state_dict(keep_vars=True)
        missing = {name: one for name, one in state.items() if not getattr(one, "_is_hf_initialized", False)}
        if missing:
            new = self.config.model_config.make_model().state_dict()
            for name, one in missing.items():
                one.copy_(new[name])


class TekaImageProcessor(BaseImageProcessor):
    """Pictures to the images that a model of teka's was trained on, intensities in [0, 1]; without torchvision.

    >>> from PIL import Image
    >>> from teka.integrations.transformers import TekaImageProcessor
    >>> processor = TekaImageProcessor(image_size=(16, 24), in_channels=3)
    >>> processor(Image.new("L", (100, 50), 255))["pixel_values"].shape
    torch.Size([1, 3, 16, 24])

    Args:
        image_size: Height and width.
        in_channels: 1 for grey, 3 for colours.
        pictures: How, as `teka.prediction.PictureSettings` reads it.
        kwargs: What every image processor takes.
    """

    model_input_names = ("pixel_values",)

    def __init__(
        self,
        image_size: Sequence[int] = (32, 32),
        in_channels: int = 3,
        pictures: Mapping[str, object] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.image_size, self.in_channels = list(image_size), in_channels
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
    AutoImageProcessor.register(TekaConfig, slow_image_processor_class=TekaImageProcessor, exist_ok=True)
