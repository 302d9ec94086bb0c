"""What a benchmark was asked to do."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from teka.bench.layers import LAYERS, YARDSTICK, Layer, layer_names
from teka.errors import unknown_name, wrong_value

DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Settings:
    """Sizes, repetitions and limits of a benchmark.

    Args:
        sides: Sides of the square grids; side² tokens each.
        dim: Size of a token.
        heads: Number of heads.
        batch: Sequences a step.
        repeats: Timed rounds.
        warmup: Rounds before them.
        threads: Threads that torch uses within an operation.
        layers: Names of the layers; None for all.
        device: "cpu" or "cuda".
        max_bytes: Most memory that a layer may need.
        seed: Seed of the weights and tokens.

    Raises:
        ValueError: A value out of range, an unknown name, or a device that is not there.
    """

    sides: Sequence[int]
    dim: int
    heads: int
    batch: int
    repeats: int
    warmup: int
    threads: int
    layers: Sequence[str] | None
    device: str
    max_bytes: float
    seed: int = 0

    def __post_init__(self) -> None:
        sides = tuple(self.sides) if isinstance(self.sides, Sequence) else ()
        if not sides or any(not _is_whole(side) or side < 1 for side in sides) or len(set(sides)) < len(sides):
            raise wrong_value("sides", self.sides, "one or more different sides, each a whole number of at least 1")
        object.__setattr__(self, "sides", tuple(sorted(sides)))
        least = {"dim": 1, "heads": 2, "batch": 1, "repeats": 1, "warmup": 0, "threads": 1}
        for argument, lowest in least.items():
            value = getattr(self, argument)
            if not _is_whole(value) or value < lowest:
                raise wrong_value(argument, value, f"a whole number of at least {lowest}")
        if self.dim % self.heads:
            raise wrong_value("heads", self.heads, f"a divisor of dim = {self.dim}")
        if not self.max_bytes > 0:
            raise wrong_value("max_bytes", self.max_bytes, "a positive number of bytes")
        if self.device not in DEVICES:
            raise unknown_name("device", self.device, DEVICES)
        if self.device == "cuda" and not torch.cuda.is_available():
            raise wrong_value("device", self.device, "'cpu': torch finds no GPU here")
        known = layer_names()
        if isinstance(self.layers, str) or (self.layers is not None and not self.layers):
            raise wrong_value("layers", self.layers, f"None or a list of names out of {', '.join(map(repr, known))}")
        for name in self.layers or ():
            if name not in known:
                raise unknown_name("layers", name, known)
        names = known if self.layers is None else tuple(dict.fromkeys((YARDSTICK, *self.layers)))
        object.__setattr__(self, "layers", names)

    def chosen_layers(self) -> tuple[Layer, ...]:
        """The layers to time, in a fixed order; the yardstick is always one of them."""
        return tuple(layer for layer in LAYERS if layer.name in (self.layers or ()))

    def to_dict(self) -> dict[str, object]:
        """The fields, ready for JSON."""
        return dataclasses.asdict(self)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
