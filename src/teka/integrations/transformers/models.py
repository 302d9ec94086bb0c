"""teka's image classifiers with the model, config and processor classes of transformers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForImageClassification,
    BatchFeature,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.image_processing_utils import BaseImageProcessor
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import ImageClassifierOutput
from transformers.utils.generic import can_return_tuple

from teka.checks import check_image_size
from teka.codec import decode, encode
from teka.errors import unknown_name_error, wrong_value
from teka.models import ModelConfig, load, read_config
from teka.models.model_config import options_class
from teka.prediction import read_images

if TYPE_CHECKING:
    from PIL.Image import Image

# Fields of `ModelConfig` that `PretrainedConfig` does not have.
SAVED_FIELDS = ("model", "image_size", "in_channels", "options", "pictures")


class TekaConfig(PretrainedConfig):
    """Configuration of a `TekaForImageClassification`.

    As in all configs of transformers, `num_labels` is the number of classes, and `id2label` maps
    their indices to their names.

    >>> from teka.integrations.transformers import TekaConfig
    >>> config = TekaConfig(image_size=8, num_channels=1, num_labels=5)
    >>> config.image_size, config.in_channels, config.model_config.num_classes
    ([8, 8], 1, 5)

    Args:
        model: Name of a model of teka, such as "performer".
        image_size: Height and width of the images in pixels, or one number for both.
        in_channels: Number of channels of the images. The name `num_channels` works too.
        options: Model options by name, such as `dim` and `depth`.
        pictures: Conversion of pictures to images, see `teka.prediction.PictureSettings`.
        kwargs: Arguments of `PretrainedConfig`, such as `id2label` or `num_labels`.

    Raises:
        ValueError: The model does not accept a value, or an option of the model is not in
            `options`.
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
        for name in options_class(model).__dataclass_fields__:
            if name in kwargs:
                raise wrong_value(
                    name,
                    kwargs[name],
                    f"an entry of options, options={{{name!r}: {kwargs[name]!r}}}",
                )
        self.model = model
        self.image_size = list(check_image_size("image_size", image_size))
        self.in_channels = in_channels
        self.options = {"dim": 64, "depth": 4, "heads": 4} if options is None else dict(options)
        self.pictures = None if pictures is None else dict(pictures)
        super().__init__(**kwargs)
        _ = self.model_config  # checks all values

    @classmethod
    def from_model_config(cls, config: ModelConfig) -> "TekaConfig":
        """Convert the config of a teka model to a `TekaConfig`."""
        id2label = dict(enumerate(config.labels))
        label2id = {name: label for label, name in id2label.items()}
        saved = {name: encode(getattr(config, name)) for name in SAVED_FIELDS}
        return cls(**saved, id2label=id2label, label2id=label2id)

    @property
    def model_config(self) -> ModelConfig:
        """The same configuration as a `ModelConfig`, from which teka creates the model."""
        labels: dict[Any, str] = self.id2label or {}
        if sorted(labels) != list(range(len(labels))):
            raise wrong_value("id2label", labels, "a name for each class, with keys 0, 1, 2, …")
        fields = {name: getattr(self, name) for name in SAVED_FIELDS}
        fields["num_classes"] = len(labels)
        fields["class_names"] = [labels[label] for label in sorted(labels)]
        return decode(ModelConfig, fields, "config")


class TekaForImageClassification(PreTrainedModel):
    """teka image classifier with the interface of transformers models.

    It supports `from_pretrained`, `Trainer` and `pipeline`. After
    `activation_checkpointing_enable`, the activations of transformer blocks are recomputed in the
    backward pass.

    >>> from teka.integrations.transformers import TekaForImageClassification
    >>> model = TekaForImageClassification.from_teka("digits")
    >>> model(torch.rand(2, 1, 16, 16)).logits.shape
    torch.Size([2, 10])
    """

    config_class = TekaConfig
    main_input_name = "pixel_values"
    base_model_prefix = "model"
    is_complete = False

    def __init__(self, config: TekaConfig) -> None:
        super().__init__(config)
        # `from_pretrained(dtype=...)` changes the default dtype while it makes a model.
        self.model = config.model_config.make_model().to(torch.get_default_dtype())
        self.supports_gradient_checkpointing = bool(_find_transformer_blocks(self.model))
        self.post_init()
        self.is_complete = True

    @classmethod
    def from_teka(cls, path: str | Path) -> "TekaForImageClassification":
        """Load a model file that `teka export` has written, or a packaged model.

        Args:
            path: Folder of the model file, or the name of a packaged model, such as "digits".
        """
        classifier = cls(TekaConfig.from_model_config(read_config(path)))
        classifier.model.load_state_dict(load(path).state_dict())
        return classifier.eval()

    @can_return_tuple
    def forward(
        self,
        pixel_values: Float[Tensor, "batch channels *sides"],
        labels: Shaped[Tensor, "batch *classes"] | None = None,
    ) -> ImageClassifierOutput | tuple:
        """Return the class logits of images and, if `labels` are passed, the loss.

        The loss depends on the `problem_type` of the config.
        """
        logits = self.model(pixel_values)
        loss = None if labels is None else self.loss_function(labels, logits, self.config)
        return ImageClassifierOutput(loss=loss, logits=logits)  # pyright: ignore[reportArgumentType]

    def _set_gradient_checkpointing(self, *arguments: Any, **keywords: Any) -> None:
        """Turn activation checkpointing of the transformer blocks on or off."""
        for block in _find_transformer_blocks(self.model):
            kind = type(block)
            if not isinstance(block, GradientCheckpointingLayer):
                # Change the class in place, so that the parameter names stay the same.
                block.__class__ = type(kind.__name__, (GradientCheckpointingLayer, kind), {})
        super()._set_gradient_checkpointing(*arguments, **keywords)

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """Initialize the weights that are missing in a loaded file."""
        if not self.is_complete:  # `__init__` has initialized all weights
            return
        state = self.model.state_dict(keep_vars=True)
        initial: Mapping[str, Tensor] = {}
        for name, tensor in state.items():
            if not getattr(tensor, "_is_hf_initialized", False):
                initial = initial or self.config.model_config.make_model().state_dict()
                tensor.copy_(initial[name])


def _find_transformer_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the transformer blocks of a model in order, or [] if it has none."""
    return [block for block in getattr(model, "blocks", ()) if hasattr(block, "mlp")]


class TekaImageProcessor(BaseImageProcessor):
    """Image processor that prepares pictures for a `TekaForImageClassification`.

    The processor converts files or Pillow images of any size to the input tensor of the model. It
    does not need torchvision.

    >>> from PIL import Image
    >>> from teka.integrations.transformers import TekaImageProcessor
    >>> processor = TekaImageProcessor(image_size=(16, 24), in_channels=3)
    >>> processor(Image.new("L", (100, 50), 255))["pixel_values"].shape
    torch.Size([1, 3, 16, 24])

    Args:
        image_size: Height and width, or one number for both.
        in_channels: 1 for gray, 3 for color.
        pictures: Conversion of pictures to images, see `teka.prediction.PictureSettings`.
        kwargs: Other settings that transformers saves with every image processor.

    Raises:
        ValueError: The image size is not positive, or the argument is `size`, as for other image
            processors.
    """

    model_input_names = ("pixel_values",)

    def __init__(
        self,
        image_size: int | Sequence[int] = (32, 32),
        in_channels: int = 3,
        pictures: Mapping[str, object] | None = None,
        **kwargs: Any,
    ) -> None:
        if "size" in kwargs:
            raise unknown_name_error(
                "argument of TekaImageProcessor", "size", ("image_size", "in_channels", "pictures")
            )
        super().__init__(**kwargs)
        self.image_size = list(check_image_size("image_size", image_size))
        self.in_channels = in_channels
        self.pictures = None if pictures is None else dict(pictures)

    @classmethod
    def from_config(cls, config: TekaConfig) -> "TekaImageProcessor":
        """Return the image processor for a model with this config."""
        return cls(config.image_size, config.in_channels, config.pictures)

    def preprocess(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        images: "str | Path | Image | Sequence[str | Path | Image]",
        return_tensors: str | None = "pt",
        **_: object,  # pipelines pass further arguments to every image processor
    ) -> BatchFeature:
        """Convert image files or Pillow images to `pixel_values`, the input of a model.

        Args:
            images: Paths of picture files, or Pillow images.
            return_tensors: Type of the result, "pt" for PyTorch tensors.
        """
        pictures: list[Any] = list(images) if isinstance(images, list | tuple) else [images]
        values = read_images(
            pictures, self.pictures, image_size=tuple(self.image_size), in_channels=self.in_channels
        )
        return BatchFeature({"pixel_values": values}, tensor_type=return_tensors)

    __call__ = preprocess  # pyright: ignore[reportAssignmentType]


def register_models() -> None:
    """Register the model type "teka", so that `AutoModelForImageClassification` finds it."""
    AutoConfig.register(TekaConfig.model_type, TekaConfig, exist_ok=True)
    AutoModelForImageClassification.register(TekaConfig, TekaForImageClassification, exist_ok=True)
    AutoImageProcessor.register(
        TekaConfig, slow_image_processor_class=TekaImageProcessor, exist_ok=True
    )
