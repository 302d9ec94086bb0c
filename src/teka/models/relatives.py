"""The relative kernels of a model's blocks."""

from collections.abc import Sequence

import torch
from torch.nn import Parameter

from teka.errors import wrong_value
from teka.functional.relative import NUM_FOURIER_WAVES, NUM_FREQUENCIES, RELATIVES, initial_frequency
from teka.nn import Fourier, Rotation, RotationJoint
from teka.nn.relative import RelativeModule
from teka.nn.relative.fourier import LONGEST_WAVE

# The positions that have an option.
POSITIONS_WITH = {
    "num_waves": ("fourier",),
    "longest_wave": ("fourier",),
    "wave_weight": ("fourier",),
    "rotation_weight_scale": ("rotation", "rotation_joint"),
    "rotary_normalizer": ("rotary",),
}


def make_relatives(
    position: str,
    count: int,
    *,
    num_axes: int,
    heads: int,
    dim_head: int,
    num_waves: int | None,
    longest_wave: float | None,
    wave_weight: float | None,
    rotation_weight_scale: float | None,
    rotary_normalizer: str | None,
) -> Sequence[str | RelativeModule | None]:
    """The relative kernel of each of `count` blocks, a name where nothing is shared or asked for.

    Args:
        position: What the model knows of positions.
        count: Number of blocks.
        num_axes: Number of axes of the grid.
        heads: Number of heads of a block that use it.
        dim_head: Size of a head.
        num_waves: Number of waves of "fourier".
        longest_wave: Longest wave of "fourier" at first.
        wave_weight: Weight of all waves of "fourier" at first over that of the constant.
        rotation_weight_scale: Standard deviation of the weights of "rotation" at first.
        rotary_normalizer: What the denominator of "rotary" is made of; the layers take it, and it is checked here.

    Raises:
        ValueError: An option that the position does not have, or an unknown name.
    """
    options = {
        "num_waves": num_waves,
        "longest_wave": longest_wave,
        "wave_weight": wave_weight,
        "rotation_weight_scale": rotation_weight_scale,
        "rotary_normalizer": rotary_normalizer,
    }
    for option, value in options.items():
        if value is not None and position not in POSITIONS_WITH[option]:
            takes = " or ".join(map(repr, POSITIONS_WITH[option]))
            raise wrong_value(option, value, f"None with position={position!r}; position={takes} takes it")
    if position in ("rotation", "rotation_joint"):
        kind = Rotation if position == "rotation" else RotationJoint
        weight_scale = 1.0 if rotation_weight_scale is None else rotation_weight_scale
        frequency = Parameter(initial_frequency(NUM_FREQUENCIES).to(torch.get_default_dtype()))
        return [kind(num_axes, heads, dim_head, frequency=frequency, weight_scale=weight_scale) for _ in range(count)]
    if any(value is not None for value in (num_waves, longest_wave, wave_weight)):
        return [
            Fourier(
                num_axes,
                heads,
                num_waves=NUM_FOURIER_WAVES if num_waves is None else num_waves,
                longest_wave=LONGEST_WAVE if longest_wave is None else longest_wave,
                wave_weight=1.0 if wave_weight is None else wave_weight,
            )
            for _ in range(count)
        ]
    return [position if position in RELATIVES else None] * count
