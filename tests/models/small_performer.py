"""A Performer small enough to test in milliseconds, and images for it."""

from typing import Any

import torch
from torch import Tensor

from teka.functional import RELATIVES
from teka.models import Performer
from tests.contracts.cases import is_valid_pair

SIZE = (6, 10)


def build(
    image_size: int | tuple[int, int] = SIZE,
    in_channels: int = 2,
    num_classes: int = 3,
    *,
    seed: int = 0,
    **options: Any,
) -> Performer:
    torch.manual_seed(seed)
    options = {"dim": 8, "depth": 2, "heads": 2, "position": "rotation", **options}
    return Performer(image_size, in_channels, num_classes, **options)


def kernel_for(position: str) -> str:
    return (
        "squared_relu"
        if is_valid_pair("squared_relu", position if position in RELATIVES else None)
        else "positive"
    )


def layers(model: Performer) -> list[Any]:
    """Return the attention layers of all blocks."""
    return [block.get_submodule("attention") for block in model.blocks]


def draw_images(height: int = 6, width: int = 10) -> Tensor:
    return torch.randn(4, 2, height, width, generator=torch.Generator().manual_seed(1))
