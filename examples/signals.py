"""Classify signals by the order and distance of two events, independently of their position.

    python examples/signals.py

A signal of 256 samples, whose ends meet, contains noise, a rising chirp and a falling chirp. The
class says which chirp comes first, and whether they start 24 or 40 samples apart. A model with
relative positions is compared with one without positions.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from teka.models import Performer
from training import arguments, report, train

LENGTH, CHIRP = 256, 16


def draw_signals(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw signals (count, 1, 256) and their classes."""
    time = torch.linspace(0, 1, CHIRP)
    rising = torch.sin(2 * math.pi * (1 + 2 * time) * time) * torch.hann_window(CHIRP)
    labels = torch.randint(4, (count,), generator=generator)
    signals = torch.zeros(count, LENGTH)
    first, second = rising.expand(count, -1), rising.flip(0).expand(count, -1)
    swaps, far = (labels % 2 == 1)[:, None], labels // 2 == 1
    signals[:, :CHIRP] = torch.where(swaps, second, first)
    beginning = torch.where(far, 40, 24)[:, None] + torch.arange(CHIRP)
    signals.scatter_(1, beginning, torch.where(swaps, first, second))
    place = torch.randint(LENGTH, (count, 1), generator=generator)
    signals = signals.gather(1, (torch.arange(LENGTH) - place) % LENGTH)
    return (signals + 0.1 * torch.randn(count, LENGTH, generator=generator))[:, None], labels


def main() -> None:
    """Train models with and without positions, and report their errors."""
    options = arguments(__doc__, steps=400, inputs=200)
    torch.manual_seed(options.seed)
    sizes = {
        "dim": 32,
        "depth": 2,
        "heads": 4,
        "stem": "polyphase",
        "patch_size": 8,
        "periodic": True,
        "pool": "mean",
    }
    test = draw_signals(options.inputs, torch.Generator().manual_seed(1))
    for position in ("rotary", "none"):
        model = Performer((LENGTH,), 1, 4, position=position, **sizes)
        train(model, lambda generator: draw_signals(64, generator), cross_entropy, options.steps)
        report(f"position {position}", model, *test, range(LENGTH))


if __name__ == "__main__":
    main()
