"""What a study keeps of the heads of a network."""

import math
from collections.abc import Sequence
from dataclasses import asdict

import torch
from torch import Tensor

from teka.training.heads.measure import HeadGrid
from teka.training.heads.record import Moment

# What a cell's file keeps of a number: significant digits, and digits after the point.
DIGITS, DECIMALS = 4, 6


def measure_heads(moments: Sequence[Moment], chance: Sequence[HeadGrid]) -> dict[str, object]:
    """The heads of every layer at the start and at the end, and what is by chance, ready for JSON.

    Of a head that is a Gaussian it keeps "center" and "precision", Σ⁻¹ as its entries yy, yx and xx; of another the
    "mean" and "covariance" of its attention likewise. Of all "offset" and "weight", and of the layer "grid", the fields
    of `HeadGrid`; of "chance" these alone.

    Args:
        moments: The moments of a training, the first and the last of which are kept.
        chance: What random initial parameters give in the mean, for each layer.
    """
    return {
        "start": _layers(moments[0]),
        "end": _layers(moments[-1]),
        "chance": [_fields(grid) for grid in chance],
    }


def _layers(moment: Moment) -> list[dict[str, object]]:
    layers: list[dict[str, object]] = []
    for layer, grid in enumerate(moment.grids):
        heads = moment.heads.of_layer(layer)
        if torch.isfinite(heads.center).all():
            shape = {"center": heads.center, "precision": heads.precision}
        else:
            shape = {"mean": heads.mean, "covariance": heads.covariance}
        layers.append(
            {
                **{name: _numbers(tensor) for name, tensor in shape.items()},
                "offset": heads.offset.tolist(),
                "weight": _numbers(heads.weight),
                "grid": _fields(grid),
            }
        )
    return layers


def _fields(grid: HeadGrid) -> dict[str, object]:
    return {name: _round(number) for name, number in asdict(grid).items()}


def _numbers(tensor: Tensor) -> list[object]:
    if tensor.ndim == 3:  # symmetric
        tensor = torch.stack([tensor[:, 0, 0], tensor[:, 1, 0], tensor[:, 1, 1]], dim=-1)
    return [_round(value) for value in tensor.tolist()]


def _round(value: object) -> object:
    """To the digits that are kept; None for what JSON does not know."""
    if isinstance(value, list):
        return [_round(one) for one in value]
    if not isinstance(value, float):
        return value
    return float(f"{round(value, DECIMALS):.{DIGITS}g}") + 0.0 if math.isfinite(value) else None
