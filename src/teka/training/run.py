"""A training run: data, model, recipe and seed, saved beside its results."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from teka.checks import MAX_SIZE, check_sizes, is_integer
from teka.codec import decode
from teka.errors import unknown_name, wrong_value
from teka.files import read_json, write_json
from teka.models.model_config import MODELS, model_class, options_class
from teka.training.recipe import Recipe

RUN_FILE = "run.json"


@dataclass(frozen=True)
class DataOptions:
    """What a run is trained on.

    Args:
        data: Data set: "digits", "mnist", "fashion-mnist" or "cifar10"; or the path of a folder with a sub-folder of
            pictures for each class, or of an .npz file of images and labels.
        data_dir: Folder with the data set's files; digits need none. A path in `data` is looked for in it first.
        image_size: Side of the images in pixels: the canvas of digits, a bilinear resize of the others.
        train_size: Number of training images, all by default.
        validation_size: Number of training images held out; by default 137 of digits, 5,000 of the other published
            ones and a tenth of one's own.
    """

    data: str = "digits"
    data_dir: str | None = None
    image_size: int | None = None
    train_size: int | None = None
    validation_size: int | None = None

    def __post_init__(self) -> None:
        _check_size(self)


@dataclass(frozen=True)
class ModelOptions:
    """The model of a run, and those of its options that are not at its own defaults.

    Args:
        model: "performer", "self_attention" (the network of Cordonnier et al. 2020), or a baseline: "alexnet", "vgg16",
            "resnet18", "linformer" or "routing_transformer". Options of a model that another does not have stay at
            their defaults with it.
        position: What the Performer knows of positions: "none", "absolute", "absolute_table" (a learned vector for each
            token), or a relative kernel: "rotation", "rotation_joint", "clipped", "clipped_features", "quadratic",
            "generalized_quadratic", "table", "fourier", "rotary" (the default), "decay", "alibi", "t5", "kerple",
            "shaw", "transformer_xl" or "window"; and how the weights of "self_attention" depend on them: "quadratic"
            (the default), "generalized_quadratic" or "table" (learned vectors for rows and columns).
        kernel: Content kernel: "softmax", "squared_relu", "focused", "relu", "elu", "taylor2", "constant", "positive",
            "hyperbolic", "optimal", "trigonometric", "hedgehog", "gaussian", "dot_product" or "concatenation".
        num_features: Number of random features of the kernels that have them.
        projection: How these are drawn: "orthogonal" (the default), "independent" or "fixed_norm".
        backend: "auto", "dense", "linear", "toeplitz", "rings", "fft" or "windows".
        dim: Size of a token; of "performer" also one number for each stage.
        depth: Number of blocks; of "performer" also one number for each stage.
        heads: Number of heads; of "self_attention" also one number for each block, of "performer" for each stage.
        dim_head: Size of a head, dim / heads by default.
        patch_size: Side of a token in pixels.
        stem: How images become tokens: "convolution" (the default where a token is a pixel), "patch" (that of larger
            ones; the paper's, which learns little of single pixels), "polyphase_patch", "polyphase" or "strided".
        stem_depth: Residual blocks at each level of stem "polyphase" or "strided", one number or one for each level.
        select: What chooses the offset of a polyphase halving: "norm" or "learned".
        resampling: What makes a stage's first tokens of the last of the one before: "convolution" or "attention".
        blur: The low pass before a halving: None, an odd number of cells, or "ideal".
        subpixels: Fractions of a pixel that images are aligned to first, so that shifts by these change nothing either.
        mlp_ratio: Width of the hidden layer of MLPs over dim, by default the model's own: 4 of "performer".
        periodic: Whether the images' opposite edges meet.
        pool: What the logits are made from: "class", "mean" or "attention".
        tokens: What a token of the Linformer is: "pixel" or "image".
        content: Content kernel of "self_attention" beside the position, such as "softmax"; None for attention by
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
        max_distance: Distance in tokens from which on position "clipped", or "shaw" by axis, tells no two places apart,
            6 by default, and "window" sees nothing, 3 by default.
        window_reach: How many tokens along every axis half of the heads see, by softmax in a window; None for no such
            heads.
        rotary_normalizer: What the denominator of position "rotary" is made of; see `teka.nn.Attention`.
        epsilon: Floor of the kernels "squared_relu", "focused" and "relu" over the root mean square.
        query_key: What is done to queries and keys: "plain", "normalized" or "centred".
        gate: Whether a sigmoid of each token gates what its heads give.
        value_convolution: Side in tokens of a depthwise convolution of the values, added to what the heads give.
    """

    model: str = "performer"
    position: str | None = None
    kernel: str = "squared_relu"
    num_features: int | None = None
    projection: str | None = None
    backend: str = "auto"
    dim: int | tuple[int, ...] = 64
    depth: int | tuple[int, ...] = 2
    heads: int | tuple[int, ...] = 4
    dim_head: int | None = None
    patch_size: int = 1
    stem: str | None = None
    stem_depth: int | tuple[int, ...] = 0
    select: str = "norm"
    resampling: str = "convolution"
    blur: int | str | None = None
    subpixels: int = 1
    mlp_ratio: float | None = None
    periodic: bool = False
    pool: str = "class"
    tokens: str = "pixel"
    content: str | None = None
    downsampling: int = 2
    resnet_stem: str = "7x7"
    dropout: float | None = None
    position_heads: int | None = None
    num_waves: int | None = None
    longest_wave: float | None = None
    wave_weight: float | None = None
    rotation_weight_scale: float | None = None
    max_distance: int | None = None
    window_reach: int | None = None
    rotary_normalizer: str | None = None
    epsilon: float | None = None
    query_key: str = "plain"
    gate: bool = False
    value_convolution: int | None = None

    def __post_init__(self) -> None:
        model_class(self.model)
        _check_size(self)
        for name in ("dim", "depth", "heads"):
            several = self.model == "performer" or (name, self.model) == ("heads", "self_attention")
            if isinstance(getattr(self, name), tuple) and not several:
                raise wrong_value(
                    name, getattr(self, name), f"a whole number with model={self.model!r}"
                )
        if self.position is None:
            object.__setattr__(self, "position", _default_position(self.model))
        for one in dataclasses.fields(self)[1:]:
            default = _default_position(self.model) if one.name == "position" else one.default
            if getattr(self, one.name) != default and one.name not in _options_of(self.model):
                expected = f"{default!r} with model={self.model!r}"
                raise wrong_value(one.name, getattr(self, one.name), expected)

    @property
    def sampling(self) -> str | None:
        """The stem that makes a token of several pixels; None for a token a pixel, or another model's."""
        return (self.stem or "patch") if self.model == "performer" and self.patch_size > 1 else None

    def keywords(self) -> dict[str, Any]:
        """What the model is made with besides its sizes."""
        given = {name: getattr(self, name) for name in _options_of(self.model)}
        own = {"dropout", "mlp_ratio"}  # of which every model has a default of its own
        return {
            name: value for name, value in given.items() if value is not None or name not in own
        }


@dataclass(frozen=True)
class Run:
    """Everything that decides what a training run computes; its parts' fields are its own too: `run.learning_rate`.

    >>> from teka.training import Run
    >>> run = Run.of(position="fourier", dim=16, epochs=3)
    >>> other = run.replace(seed=1, epochs=5)
    >>> run.seed, run.differs_from(other), Run.from_dict(run.to_dict()) == run
    (0, ['epochs', 'seed'], True)
    """

    images: DataOptions = field(default_factory=DataOptions)
    network: ModelOptions = field(default_factory=ModelOptions)
    recipe: Recipe = field(default_factory=Recipe)
    seed: int = 0  # of initial weights, order of images, dropout and projections

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**32:
            raise wrong_value("seed", self.seed, "a whole number of at least 0 and below 2^32")
        if self.recipe.patience is not None and self.images.validation_size == 0:
            expected = "None when validation_size is 0: nothing tells when to stop"
            raise wrong_value("patience", self.recipe.patience, expected)

    def __getattr__(self, name: str) -> Any:
        if name not in _PART_OF:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(getattr(self, _PART_OF[name]), name)

    @classmethod
    def of(cls, **fields: object) -> Run:
        """The run with these fields of its parts, the others by default: `Run.of(position="clipped", epochs=3)`."""
        return cls.from_dict(fields)

    def replace(self, **fields: object) -> Run:
        """The same run with other fields of its parts."""
        return self.from_dict({**self.to_dict(), **fields})

    def to_dict(self) -> dict[str, object]:
        """The fields of its parts side by side, as `run.json` has them."""
        return {**vars(self.images), **vars(self.network), **vars(self.recipe), "seed": self.seed}

    @classmethod
    def from_dict(cls, fields: Mapping[str, object]) -> Run:
        """What `to_dict` gave; an unknown key, or a value of another type or out of range, is a ValueError."""
        parts: dict[str, Any] = {part: {} for part in _PARTS}
        seed: object = cls.seed
        for key, value in _renamed(fields).items():
            if key == "seed":
                seed = value
            elif key in _PART_OF:
                parts[_PART_OF[key]][key] = value
            else:
                raise unknown_name("run key", key, (*_PART_OF, "seed"))
        made = {part: decode(kind, parts[part], part) for part, kind in _PARTS.items()}
        return cls(**made, seed=decode(int, seed, "seed"))

    def differs_from(self, other: Run) -> list[str]:
        """The fields that another run has otherwise, but for the data's folder."""
        here, there = self.to_dict(), other.to_dict()
        return [name for name in here if name != "data_dir" and here[name] != there[name]]

    def save(self, directory: Path) -> None:
        """Write `run.json` into a folder."""
        write_json(directory / RUN_FILE, self.to_dict())

    @classmethod
    def load(cls, directory: Path) -> Run:
        """Read `run.json` of a folder, which must be a run's."""
        if not (directory / RUN_FILE).is_file():
            raise wrong_value("run", str(directory), f"a folder that holds {RUN_FILE}")
        return cls.from_dict(read_json(directory / RUN_FILE))

    def make_model(
        self, *, image_size: tuple[int, int], in_channels: int, num_classes: int
    ) -> nn.Module:
        """The model of this run, with new weights from torch's global generator."""
        make = model_class(self.network.model)
        return make(image_size, in_channels, num_classes, **self.network.keywords())


_PARTS: dict[str, type[Any]] = {"images": DataOptions, "network": ModelOptions, "recipe": Recipe}
_PART_OF = {one.name: part for part, kind in _PARTS.items() for one in dataclasses.fields(kind)}


def _options_of(model: str) -> list[str]:
    """The fields of `ModelOptions` that a model takes."""
    return [one.name for one in dataclasses.fields(options_class(model)) if one.name in _PART_OF]


def _default_position(model: str) -> str:
    return "quadratic" if model == "self_attention" else "rotary"


def _renamed(fields: Mapping[str, object]) -> dict[str, object]:
    """The fields by their present names and defaults.

    An older teka had the position of "self_attention" as its "encoding", and "patch" as the stem of models without one.
    """
    renamed = dict(fields)
    model = renamed.get("model", ModelOptions.model)
    has_stem = not (isinstance(model, str) and model in MODELS) or "stem" in _options_of(model)
    if not has_stem and renamed.get("stem") == "patch":
        del renamed["stem"]
    encoding, has_it = renamed.pop("encoding", None), model == "self_attention"
    if encoding is None or (not has_it and encoding == "quadratic"):
        return renamed
    if not has_it or renamed.get("position") not in (None, "rotary"):
        raise wrong_value(
            "encoding", encoding, "left out beside position, or without model='self_attention'"
        )
    return {**renamed, "position": encoding}


def _check_size(options: DataOptions | ModelOptions) -> None:
    """Check that no number is so large that torch's error would not say whose it is."""
    check_sizes(
        {name: value for name, value in vars(options).items() if is_integer(value)}, least=-MAX_SIZE
    )
