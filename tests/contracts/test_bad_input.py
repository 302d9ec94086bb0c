"""Wrong arguments give a result, or a ValueError that names the argument and its value."""

import dataclasses
import inspect
import math
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import teka
from teka import Grid
from teka.functional import (
    KERNELS,
    RELATIVES,
    RelativeKernel,
    attention,
    decode,
    draw_projection,
    length_mask,
)
from teka.models import Performer, PerformerConfig
from teka.nn import (
    Attention,
    AttentionPool,
    EmbeddedBiasTable,
    LearnedFeatures,
    LearnedRelativeKernel,
    MultiheadAttention,
    RandomFeatures,
    SinusoidalPositionEmbedding,
    SpaceToDepth,
    TransformerBlock,
    prune_heads,
)
from teka.nn.diagnostics.explain import _explain_layer
from teka.nn.options import ALL_OPTIONS, KERNEL_OPTIONS, AttentionOptions
from teka.nn.transformer_block import BLOCK_OPTIONS
from tests.contracts.cases import build_kernel, build_relative, draw_inputs, for_each

PACKAGE = str(Path(teka.__file__).parent)
GRID = Grid((2, 3))
QUERY, KEY, VALUE = draw_inputs(6, heads=2, dim=4, dim_value=4, dtype=torch.float32)
FIRST: dict[str, Any] = {"query": QUERY[:, :, :1], "key": KEY[:, :, :1], "value": VALUE[:, :, :1]}
PROMPT: dict[str, Any] = {"query": QUERY, "key": KEY, "value": VALUE}
MASK = torch.ones(2, 6, dtype=torch.bool)
TOKENS, IMAGES = torch.zeros(2, 6, 8), torch.zeros(2, 1, 4, 4)
LAYER, BLOCK, UNPLACED = Attention(8, 2), TransformerBlock(8, 2), Attention(8, 2, relative=None)
CAUSAL = Attention(8, 2, causal=True, num_axes=1)
TWIN = MultiheadAttention(8, 2, batch_first=True)
PERFORMER = Performer(4, 1, 3, dim=8, depth=1, heads=2, pool="mean")
ROTARY: dict[str, Any] = {"kernel": "squared_relu", "relative": "rotary"}
STATE, STATES = decode(**FIRST, state=None, **ROTARY)[1], CAUSAL.step(TOKENS[:, 0])[1]
# Values of constructor arguments without a default.
REQUIRED_ARGUMENTS: dict[str, Any] = {
    "dim": 8,
    "heads": 2,
    "dim_head": 4,
    "num_axes": 2,
    "num_pairs": 2,
    "max_offset": 2,
}
REQUIRED_ARGUMENTS |= {
    "embed_dim": 8,
    "num_heads": 2,
    "embedding_dim": 3,
    "image_size": 4,
    "in_channels": 1,
    "num_classes": 3,
    "depth": 2,
    "shape": (2, 3),
}
# Options that these layers take as keyword arguments.
OPTIONS_OF: dict[Callable, tuple[str, ...]] = {
    Attention: ALL_OPTIONS,
    TransformerBlock: BLOCK_OPTIONS,
    MultiheadAttention: KERNEL_OPTIONS,
}


@dataclass
class Entry:
    """A public function with correct arguments, and a constructor that errors may refer to."""

    call: Callable
    good: dict[str, Any]
    made_by: Callable | None = None

    @property
    def takes(self) -> set[str]:
        parameters = inspect.signature(self.call).parameters.items()
        return {
            *self.good,
            *(
                name
                for name, parameter in parameters
                if parameter.kind is not parameter.VAR_KEYWORD
            ),
        }

    def is_clear(self, error: ValueError) -> bool:
        """Return True if teka raised the error and it names an argument and its value."""
        ours = traceback.extract_tb(error.__traceback__)[-1].filename.startswith(PACKAGE)
        says = re.search(r"\bmust\b.*\bgot\b", str(error), re.DOTALL) is not None
        names = self.takes if self.made_by is None else self.takes | set(arguments_of(self.made_by))
        return ours and says and any(re.search(rf"\b{name}\b", str(error)) for name in names)


def arguments_of(kind: Callable) -> dict[str, Any]:
    """Return valid values of the arguments of a constructor, with the options that are keywords."""
    arguments: dict[str, Any] = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            options = dataclasses.asdict(AttentionOptions())
            arguments |= {option: options[option] for option in OPTIONS_OF.get(kind, ())}
        elif parameter.default is parameter.empty:
            arguments[name] = REQUIRED_ARGUMENTS.get(name)
        else:
            arguments[name] = parameter.default
    return arguments


def constructor(kind: type, **changed: object) -> Entry:
    """Return the entry of a constructor. A module without inputs is called too."""

    def build(**arguments: object) -> object:
        made = kind(**arguments)
        return (
            made()
            if isinstance(made, nn.Module) and not inspect.signature(made.forward).parameters
            else made
        )

    good = arguments_of(kind)
    good.pop("device", None)  # PyTorch reports wrong devices
    return Entry(build, good | changed, kind)


def constructor_options(kind: type[RelativeKernel]) -> dict[str, object]:
    """Return valid arguments of the initial values of a relative kernel."""
    return {
        name: REQUIRED_ARGUMENTS.get(name)
        if parameter.default is parameter.empty
        else parameter.default
        for name, parameter in inspect.signature(kind.with_initial_parameters).parameters.items()
    }


def initializer(name: str) -> Callable[..., LearnedRelativeKernel]:
    """Return what makes a relative kernel from the arguments that its initial values have."""
    return lambda **options: LearnedRelativeKernel(name, **options)


def kernel(instance: object, argument: str, **options: object) -> Entry:
    """Return the entry of attention with a kernel that is built from its fields."""
    assert dataclasses.is_dataclass(instance)

    def attend(**fields: object) -> Tensor:
        return attention(QUERY, KEY, VALUE, **{**options, argument: type(instance)(**fields)})

    return Entry(
        attend,
        {field.name: getattr(instance, field.name) for field in dataclasses.fields(instance)},
    )


KERNEL_ENTRIES = [kernel(build_kernel(name, None, 4), "kernel") for name in KERNELS]
RELATIVE_ENTRIES = [
    kernel(
        build_relative(name, heads=2, dim=4, num_axes=2), "relative", kernel="softmax", grid=GRID
    )
    for name in RELATIVES
]
ENTRIES = {
    "attention": Entry(
        attention,
        {"query": QUERY, "key": KEY, "value": VALUE, "relative": "rotation", "grid": GRID},
    ),
    "decode": Entry(decode, {**FIRST, "state": STATE, **ROTARY}),
    "decode a prompt": Entry(decode, {**PROMPT, "state": None, "key_mask": MASK, **ROTARY}),
    "draw_projection": Entry(
        draw_projection, {"num_features": 5, "dim": 4, "generator": torch.Generator()}
    ),
    "length_mask": Entry(length_mask, {"lengths": torch.tensor([1, 3]), "num_tokens": 4}),
    **{
        f"kernel {name}": entry
        for name, entry in zip(KERNELS, KERNEL_ENTRIES, strict=True)
        if entry.good
    },
    **{f"relative {name}": entry for name, entry in zip(RELATIVES, RELATIVE_ENTRIES, strict=True)},
    **{
        f"initial {name}": Entry(
            initializer(name), constructor_options(RELATIVES[name]), LearnedRelativeKernel
        )
        for name in RELATIVES
    },
    **{
        kind.__name__: constructor(kind)
        for kind in (Grid, Attention, TransformerBlock, AttentionPool)
    },
    **{
        kind.__name__: constructor(kind)
        for kind in (SinusoidalPositionEmbedding, SpaceToDepth, MultiheadAttention)
    },
    "Performer": Entry(
        lambda **options: Performer(PerformerConfig(**options)),
        constructor(PerformerConfig).good,
        PerformerConfig,
    ),
    "EmbeddedBiasTable": constructor(EmbeddedBiasTable),
    "RandomFeatures": constructor(RandomFeatures, kernel="positive"),
    "LearnedFeatures": constructor(LearnedFeatures, kernel="hedgehog"),
    "layer": Entry(LAYER.forward, {"tokens": TOKENS, "grid": GRID}, Attention),
    "layer without positions": Entry(UNPLACED.forward, {"tokens": TOKENS, "grid": GRID}, Attention),
    "block": Entry(BLOCK.forward, {"tokens": TOKENS, "grid": GRID}, TransformerBlock),
    "twin": Entry(
        TWIN.forward, {"query": TOKENS, "key": TOKENS, "value": TOKENS, "key_padding_mask": ~MASK}
    ),
    "step": Entry(CAUSAL.step, {"token": TOKENS[:, 0], "state": STATES}, Attention),
    "chosen_backend": Entry(LAYER.chosen_backend, {"grid": GRID}, Attention),
    "explain": Entry(partial(_explain_layer, LAYER), {"grid": GRID}, Attention),
    "prune_heads": Entry(prune_heads, {"attention": LAYER, "heads": [0]}),
    "positions": Entry(SinusoidalPositionEmbedding(8).forward, {"tokens": TOKENS, "grid": GRID}),
    "pool": Entry(AttentionPool(8, 2).forward, {"tokens": TOKENS, "key_mask": MASK}),
    "model": Entry(PERFORMER.forward, {"images": IMAGES}),
    "resize": Entry(
        Performer(4, 1, 3, dim=8, depth=1, heads=2, pool="mean").resize, {"image_size": 4}
    ),
    "flatten": Entry(GRID.flatten, {"tensor": torch.zeros(2, 3, 2, 3)}),
    "unflatten": Entry(GRID.unflatten, {"tokens": TOKENS}),
    "roll": Entry(GRID.roll, {"tensor": torch.zeros(2, 3, 2, 3), "shift": (1, 0)}),
    "wrap": Entry(GRID.wrap, {"offsets": torch.zeros(4, 2)}),
}
WRONG: list[Any] = [
    None,
    "nothing",
    "",
    -1,
    0,
    2,
    1.5,
    -0.5,
    math.nan,
    math.inf,
    1e300,
    1e-300,
    2**62,
    10**400,
    True,
    1j,
]
WRONG += [
    [],
    [1, 2],
    {},
    object(),
    Attention,
    np.zeros(2),
    np.ones((2, 6), dtype=bool),
    torch.tensor(2),
    Grid(5),
    (None,),
]
WRONG += [
    torch.zeros(2),
    torch.zeros(2, 2, 6, 4, dtype=torch.long),
    torch.float64,
    STATE,
    STATES * 2,
]
WRONG += [
    decode(**FIRST, state=None, kernel="elu", relative=name)[1]
    for name in (None, "clipped", "rotary")
]
WRONG += [
    decode(**{name: change(tensor) for name, tensor in FIRST.items()}, state=None, **ROTARY)[1]
    for change in (Tensor.double, lambda tensor: tensor[:1], lambda tensor: tensor[:, :1])
]
CHANGES: list[Callable[[Tensor], Any]] = [
    *(Tensor.double, Tensor.bfloat16, Tensor.long, Tensor.bool, Tensor.tolist, Tensor.numpy),
    *(
        lambda tensor: tensor[None],
        lambda tensor: tensor[0],
        lambda tensor: tensor[:0],
        lambda tensor: tensor[..., :0],
    ),
    *(
        lambda tensor: tensor[..., :-1],
        lambda tensor: torch.cat([tensor, tensor]),
        lambda tensor: -1 - tensor.float(),
    ),
]


def call_wrongly(data: st.DataObject) -> bool:
    """Call an entry with one or two wrong arguments. Return True if it raised a clear error.

    Args:
        data: Source of the entry and the arguments.
    """
    entry = ENTRIES[data.draw(st.sampled_from(sorted(ENTRIES)), label="entry")]
    arguments = dict(entry.good)
    for name in data.draw(
        st.sets(st.sampled_from(sorted(entry.takes)), min_size=1, max_size=2), label="wrong"
    ):
        good = arguments.get(name)
        if isinstance(good, Tensor) and data.draw(st.booleans()):
            arguments[name] = data.draw(st.sampled_from(CHANGES))(good.detach())
        else:
            arguments[name] = data.draw(st.sampled_from(WRONG), label=name)
    refused = None
    try:
        entry.call(**arguments)
    except ValueError as error:
        refused = error
    assert refused is None or entry.is_clear(refused), refused
    return refused is not None


@settings(max_examples=400)
@given(data=st.data())
def test_wrong_argument_gives_a_result_or_a_clear_error(data: st.DataObject):
    call_wrongly(data)


@for_each(ENTRIES)
def test_correct_arguments_give_a_result(entry: Entry):
    entry.call(**entry.good)
