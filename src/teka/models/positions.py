"""What a Performer knows of positions: the names, the options of each, and the relative kernel of every block."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn import Parameter

from teka.errors import wrong_value
from teka.functional import RELATIVES
from teka.functional.relative.rotation import NUM_FREQUENCIES, initial_frequency
from teka.grid import Grid
from teka.models.stem import Stage
from teka.nn import AbsolutePosition, AbsoluteTable, Rotation, RotationJoint
from teka.nn.heads import count_position_heads
from teka.nn.options import AttentionOptions
from teka.nn.relative import RELATIVE_MODULES
from teka.nn.transformer_block import count_window_heads
from teka.nn.waves import RelativeModule

POSITIONS = ("none", "absolute", "absolute_table", *RELATIVES)
# The positions that have an option.
POSITIONS_WITH = dict.fromkeys(("num_waves", "longest_wave", "wave_weight"), ("fourier",)) | {
    "rotation_weight_scale": ("rotation", "rotation_joint"),
    "max_distance": ("clipped", "clipped_features", "shaw", "window"),
    "rotary_normalizer": ("rotary",),
}


def check_options(position: str, options: Mapping[str, object]) -> None:
    """Check that no option is given that the position does not have."""
    for option, value in options.items():
        if value is not None and position not in POSITIONS_WITH[option]:
            others = " or ".join(map(repr, POSITIONS_WITH[option]))
            raise wrong_value(
                option, value, f"None with position={position!r}; position={others} takes it"
            )


def make_absolute(position: str, dim: int, grid: Grid) -> AbsolutePosition | AbsoluteTable | None:
    """What is added to the tokens once, if anything."""
    if position == "absolute":
        return AbsolutePosition(dim, grid.num_axes)
    return AbsoluteTable(dim, grid.shape) if position == "absolute_table" else None


def make_relatives(
    position: str,
    stages: Sequence[Stage],
    chosen: AttentionOptions,
    num_axes: int,
    options: Mapping[str, Any],
    window_reach: int | None,
) -> list[list[str | RelativeModule | None]]:
    """The relative kernel of each block of each stage, a name where nothing is shared or asked for."""
    shared = Parameter(initial_frequency(NUM_FREQUENCIES).to(torch.get_default_dtype()))
    given = {name: value for name, value in options.items() if value is not None}

    def make(stage: Stage) -> str | RelativeModule | None:
        heads = stage.heads - count_window_heads(window_reach, stage.heads)
        by_position = count_position_heads(chosen.position_heads, chosen.relative, heads)
        sizes = {"num_axes": num_axes, "heads": by_position or heads}
        dim_head = stage.dim // stage.heads if chosen.dim_head is None else chosen.dim_head
        if position in ("rotation", "rotation_joint"):
            kind = Rotation if position == "rotation" else RotationJoint
            scale = given.get("rotation_weight_scale", 1.0)
            return kind(**sizes, dim_head=dim_head, frequency=shared, weight_scale=scale)
        if not given:
            return position if position in RELATIVES else None
        kind = RELATIVE_MODULES[position]
        known = given | sizes | {"dim_head": dim_head, "num_features": chosen.num_features}
        return kind(
            **{
                name: value
                for name, value in known.items()
                if name in inspect.signature(kind).parameters
            }
        )

    return [[make(stage) for _ in range(stage.depth)] for stage in stages]
