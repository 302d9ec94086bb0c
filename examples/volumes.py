"""Classify shapes in volumes, independently of their position.

    python examples/volumes.py

A volume of 16 × 16 × 16 cells, whose opposite faces meet, contains noise and a ball, a shell, a
box, a cross or a ring. The prediction is the same for every whole shift along any axis.
"""

import itertools

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from teka.models import Performer
from training import arguments, report, train

SIDE, SHAPES = 16, 5


def draw_volumes(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw volumes (count, 1, 16, 16, 16) and their classes."""
    labels = torch.randint(SHAPES, (count,), generator=generator)
    size = 3 + torch.rand(count, 1, 1, 1, generator=generator)
    cells = torch.cartesian_prod(*[torch.arange(SIDE) - SIDE // 2] * 3).view(SIDE, SIDE, SIDE, 3)
    away, sizes = cells.abs(), (cells**2).sum(-1).sqrt()
    flat = (cells[..., 1:] ** 2).sum(-1).sqrt()
    kinds = torch.stack(
        [
            sizes <= size,
            (sizes <= size) & (sizes > size - 1.5),
            (away.amax(-1) <= size - 0.8),
            (away.sort(-1).values[..., 1] <= 1) & (away.amax(-1) <= size),
            ((flat - size).abs() <= 1) & (away[..., 0] <= 1),
        ],
        dim=1,
    )
    volumes = kinds[torch.arange(count), labels].float()
    places = torch.randint(SIDE, (count, 3), generator=generator).tolist()
    volumes = torch.stack(
        [volume.roll(place, (0, 1, 2)) for volume, place in zip(volumes, places, strict=True)]
    )
    return (volumes + 0.3 * torch.randn(volumes.shape, generator=generator))[:, None], labels


def main() -> None:
    """Train a model and report its errors."""
    options = arguments(__doc__, steps=300, inputs=500)
    torch.manual_seed(options.seed)
    model = Performer(
        (SIDE,) * 3,
        1,
        SHAPES,
        dim=32,
        depth=2,
        heads=4,
        stem="polyphase",
        patch_size=4,
        periodic=True,
        pool="mean",
    )
    train(model, lambda generator: draw_volumes(32, generator), cross_entropy, options.steps)
    shifts = [(0, 0, 0), *itertools.product((1, 5), (2, 7), (3, 8))]
    report(
        "volumes", model, *draw_volumes(options.inputs, torch.Generator().manual_seed(1)), shifts
    )


if __name__ == "__main__":
    main()
