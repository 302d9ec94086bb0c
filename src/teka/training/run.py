"""A training run, as one frozen dataclass that is saved beside its results."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from teka.checks import LARGEST
from teka.errors import unknown_name, wrong_value
from teka.files import read_json, write_json
from teka.models import MODELS

OPTIMIZERS = ("adam", "adamw", "sgd")
SCHEDULES = ("constant", "cosine")
PRECISIONS = ("float32", "bfloat16", "float16")
RUN_FILE = "run.json"


@dataclass(frozen=True)
class Run:
    """Everything that decides what a training run computes.

    Args:
        data: Data set: "digits", "mnist", "fashion-mnist" or "cifar10"; or the path of a folder with a sub-folder of
            pictures for each class, or of an .npz file of images and labels.
        data_dir: Folder with the data set's files; digits need none. A path in `data` is looked for in it first.
        image_size: Side of the images in pixels: the canvas of digits, a bilinear resize of the others.
        train_size: Number of training images, all by default.
        validation_size: Number of training images held out; by default 137 of digits, 5,000 of the other published
            ones and a tenth of one's own.
        model: "performer", "self_attention" (the network of Cordonnier et al. 2020), or a baseline: "alexnet", "vgg16",
            "resnet18", "linformer" or "routing_transformer". Options of a model that another does not have stay at
            their defaults with it.
        position: What the Performer knows of positions: "none", "absolute", or a relative kernel: "rotation",
            "rotation_joint", "clipped", "clipped_features", "quadratic", "generalized_quadratic", "table", "fourier" or
            "rotary".
        kernel: Content kernel: "softmax", "squared_relu", "focused", "relu", "elu", "taylor2", "constant", "positive",
            "hyperbolic", "optimal", "trigonometric" or "hedgehog".
        num_features: Number of random features of the kernels that have them.
        backend: "auto", "dense", "linear", "toeplitz", "rings" or "fft".
        dim: Size of a token.
        depth: Number of blocks.
        heads: Number of heads; of "self_attention" also one number for each block.
        dim_head: Size of a head, dim / heads by default.
        patch_size: Side of a token in pixels.
        stem: How images become tokens: "patch" or "convolution".
        periodic: Whether the images' opposite edges meet.
        pool: What the logits are made from: "class", "mean" or "attention".
        tokens: What a token of the Linformer is: "pixel" or "image".
        encoding: How the weights of "self_attention" depend on positions: "quadratic", "generalized_quadratic" or
            "table" (learned row and column encoding).
        content: Content kernel of "self_attention" beside the encoding, such as "softmax"; None for attention by
            position alone.
        downsampling: Side in pixels of the blocks that are the tokens of "self_attention".
        resnet_stem: First layer of "resnet18": "7x7", with stride 2 and max pooling, or "3x3".
        dropout: Probability of dropping a number in training, by default the model's own: 0 of "performer".
        position_heads: Number of last heads of a block that attend by position alone, the others by content alone; with
            0 both act in every head. By default half of the heads of "clipped" and 0 of the others'.
        num_waves: Number of waves of position "fourier", 4 by default.
        longest_wave: Longest wave of position "fourier" at first, in tokens, 64 by default.
        wave_weight: Weight of the waves of position "fourier" at first over that of the constant, 1 by default.
        rotation_weight_scale: Standard deviation of the weights of position "rotation" at first, 1 by default.
        rotary_normalizer: What the denominator of position "rotary" is made of; see `teka.nn.Attention`.
        epsilon: Floor of the kernels "squared_relu", "focused" and "relu" over the root mean square.
        query_key: What is done to queries and keys: "plain", "normalized" or "centred".
        gate: Whether a sigmoid of each token gates what its heads give.
        value_convolution: Side in tokens of a depthwise convolution of the values, added to what the heads give.
        epochs: Most passes over the training images.
        batch_size: Images a step.
        optimizer: "adamw", "adam" or "sgd".
        learning_rate: Peak learning rate.
        label_smoothing: Share of the target that is spread over all classes in training; the loss of held-out images
            is without it.
        random_shift: Largest number of pixels that a training image is moved by along each axis, at random; over the
            edge if the images' edges meet, and filled with background if not.
        random_flip: Whether training images are mirrored left to right at random.
        precision: "float32", or "bfloat16" or "float16" for products under autocast with weights in float32.
        betas: Decay rates of Adam's moments.
        momentum: Momentum of SGD; 0 with the others.
        weight_decay: Decoupled weight decay of AdamW, of the weights of linear maps; or of SGD, a share of each
            parameter in its gradient, but of those of positions; 0 with "adam".
        schedule: "cosine" (to 0 over the epochs) or "constant".
        warmup: Share of the steps over which the learning rate rises linearly from 0.
        gradient_clip: Largest norm of the gradient; 0 for no clipping.
        patience: Epochs without a better validation accuracy before training stops early; None for never.
        redraw_every: Steps between two draws of the random projections; 0 for never.
        seed: Seed of initial weights, order of images, dropout and projections.

    Raises:
        ValueError: A value out of range, or an unknown name.
    """

    data: str = "digits"
    data_dir: str | None = None
    image_size: int | None = None
    train_size: int | None = None
    validation_size: int | None = None
    model: str = "performer"
    position: str = "rotary"
    kernel: str = "squared_relu"
    num_features: int | None = None
    backend: str = "auto"
    dim: int = 64
    depth: int = 2
    heads: int | tuple[int, ...] = 4
    dim_head: int | None = None
    patch_size: int = 1
    stem: str = "patch"
    periodic: bool = False
    pool: str = "class"
    tokens: str = "pixel"
    encoding: str = "quadratic"
    content: str | None = None
    downsampling: int = 2
    resnet_stem: str = "7x7"
    dropout: float | None = None
    position_heads: int | None = None
    num_waves: int | None = None
    longest_wave: float | None = None
    wave_weight: float | None = None
    rotation_weight_scale: float | None = None
    rotary_normalizer: str | None = None
    epsilon: float | None = None
    query_key: str = "plain"
    gate: bool = False
    value_convolution: int | None = None
    epochs: int = 20
    batch_size: int = 64
    optimizer: str = "adamw"
    learning_rate: float = 2e-3
    label_smoothing: float = 0.0
    random_shift: int = 0
    random_flip: bool = False
    precision: str = "float32"
    betas: tuple[float, float] = (0.9, 0.98)
    momentum: float = 0.0
    weight_decay: float = 0.05
    schedule: str = "cosine"
    warmup: float = 0.1
    gradient_clip: float = 1.0
    patience: int | None = None
    redraw_every: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        _check_types(self)
        _check_model(self)
        if self.optimizer not in OPTIMIZERS:
            raise unknown_name("optimizer", self.optimizer, OPTIMIZERS)
        if self.schedule not in SCHEDULES:
            raise unknown_name("schedule", self.schedule, SCHEDULES)
        if self.precision not in PRECISIONS:
            raise unknown_name("precision", self.precision, PRECISIONS)
        if not 0 <= self.label_smoothing < 1:
            raise wrong_value("label_smoothing", self.label_smoothing, "a share of at least 0 and below 1")
        for argument in ("epochs", "batch_size"):
            if getattr(self, argument) < 1:
                raise wrong_value(argument, getattr(self, argument), "at least 1")
        for argument in ("gradient_clip", "random_shift", "redraw_every", "weight_decay"):
            if not getattr(self, argument) >= 0:
                raise wrong_value(argument, getattr(self, argument), "at least 0")
        if not 0 <= self.seed < 2**32:
            raise wrong_value("seed", self.seed, "a whole number of at least 0 and below 2^32")
        if not 0 < self.learning_rate < float("inf"):
            raise wrong_value("learning_rate", self.learning_rate, "a positive finite number")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise wrong_value("betas", self.betas, "two numbers of at least 0 and below 1")
        if self.optimizer == "sgd" and self.betas != Run.betas:
            raise wrong_value("betas", self.betas, f"{Run.betas} with optimizer 'sgd', which has none")
        if not 0 <= self.momentum < 1:
            raise wrong_value("momentum", self.momentum, "a number of at least 0 and below 1")
        if self.optimizer != "sgd" and self.momentum != 0:
            raise wrong_value("momentum", self.momentum, f"0 with optimizer {self.optimizer!r}, which has betas")
        if not 0 <= self.warmup < 1:
            raise wrong_value("warmup", self.warmup, "a share of the steps, at least 0 and below 1")
        if self.patience is not None and self.patience < 1:
            raise wrong_value("patience", self.patience, "None or at least 1")
        if self.patience is not None and self.validation_size == 0:
            raise wrong_value("patience", self.patience, "None when validation_size is 0: nothing tells when to stop")
        if self.optimizer == "adam" and self.weight_decay != 0:
            raise wrong_value("weight_decay", self.weight_decay, "0 with optimizer 'adam', which has none")

    def to_dict(self) -> dict[str, object]:
        """The fields, ready for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, object]) -> Run:
        """The run with these fields, the others by default.

        Raises:
            ValueError: A key that is not a field, or a value out of range.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for key in fields:
            if key not in known:
                raise unknown_name("run key", key, known)
        # JSON and YAML know lists only.
        values = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
        return cls(**typing.cast("dict[str, typing.Any]", values))

    def save(self, directory: Path) -> None:
        """Write `run.json` into a folder."""
        write_json(directory / RUN_FILE, self.to_dict())

    @classmethod
    def load(cls, directory: Path) -> Run:
        """Read `run.json` of a folder.

        Raises:
            ValueError: The folder is not a run's, or the file is not one.
        """
        if not (directory / RUN_FILE).is_file():
            raise wrong_value("run", str(directory), f"a folder that holds {RUN_FILE}")
        return cls.from_dict(read_json(directory / RUN_FILE))

    def make_model(self, *, image_size: tuple[int, int], in_channels: int, num_classes: int) -> nn.Module:
        """The model of this run, with new weights from torch's global generator.

        Args:
            image_size: Height and width of the images.
            in_channels: Channels of the images.
            num_classes: Number of classes.
        """
        kind = MODELS[self.model]
        options = {_keyword(name): getattr(self, name) for name in _model_fields(kind)}
        if self.dropout is None:
            options.pop("dropout", None)
        return kind(image_size, in_channels, num_classes, **options)


def _model_fields(kind: type[nn.Module]) -> list[str]:
    """The fields of a run that are options of a model."""
    options = inspect.signature(kind).parameters.keys() - {"image_size", "in_channels", "num_classes"}
    if kind is MODELS["self_attention"]:
        options = options - {"position"} | {"encoding"}
    return [field.name for field in dataclasses.fields(Run) if field.name in options]


def _keyword(name: str) -> str:
    return "position" if name == "encoding" else name


def _check_model(run: Run) -> None:
    """Check that no option of a model is given that this one does not have."""
    if run.model not in MODELS:
        raise unknown_name("model", run.model, MODELS)
    if isinstance(run.heads, tuple) and (run.model != "self_attention" or not all(map(_is_whole, run.heads))):
        expected = "a whole number, or with model='self_attention' one for each block"
        raise wrong_value("heads", run.heads, expected)
    fields = {field.name: field.default for field in dataclasses.fields(Run)}
    taken = _model_fields(MODELS[run.model])
    for other in MODELS.values():
        for name in _model_fields(other):
            if name not in taken and getattr(run, name) != fields[name]:
                raise wrong_value(name, getattr(run, name), f"{fields[name]!r} with model={run.model!r}, without it")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_types(run: Run) -> None:
    """Check that every field has its declared type, as a file may hold anything."""
    for name, declared in typing.get_type_hints(Run).items():
        value = getattr(run, name)
        options = typing.get_args(declared) if isinstance(declared, types.UnionType) else (declared,)
        if not any(_is_of(value, option) for option in options):
            raise wrong_value(name, value, str(getattr(declared, "__name__", declared)).replace("NoneType", "None"))
        if _is_whole(value) and abs(value) > LARGEST and name != "seed":
            raise wrong_value(name, value, f"a whole number up to {LARGEST}")


def _is_of(value: object, declared: object) -> bool:
    if typing.get_origin(declared) is tuple:
        kinds = set(typing.get_args(declared)) - {...}
        return isinstance(value, tuple) and all(any(_is_of(one, kind) for kind in kinds) for one in value)
    if declared in (int, float):
        return _is_whole(value) or (declared is float and isinstance(value, float))
    return isinstance(declared, type) and isinstance(value, declared)
