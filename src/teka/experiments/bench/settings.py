"""What a benchmark was asked to do."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from teka.checks import LARGEST
from teka.errors import unknown_name, wrong_value
from teka.experiments.bench.layers import LAYERS, YARDSTICK, Layer, layer_names
from teka.experiments.bench.step import DIRECTIONS

DEVICES = ("cpu", "cuda")
MOST_THREADS = 1024


@dataclass(frozen=True)
class Settings:
    """Sizes, repetitions and limits of a benchmark.

    Args:
        lengths: Numbers of tokens, each the square of a whole number: the cells of square grids.
        direction: "forward_backward" or "forward".
        dim: Size of a token.
        heads: Number of heads.
        batch: Sequences a step.
        repeats: Timed rounds, fewer where the budget asks for it.
        warmup: Rounds before them, likewise.
        threads: Threads that torch uses within an operation.
        layers: Names of the layers; None for all.
        device: "cpu" or "cuda".
        max_bytes: Most memory that a layer may need.
        max_seconds: Longest step of a layer.
        budget_seconds: Time that the whole benchmark may take.
        seed: Seed of the weights and tokens.

    Raises:
        ValueError: A value out of range, an unknown name, or a device that is not there.
    """

    lengths: Sequence[int]
    direction: str
    dim: int
    heads: int
    batch: int
    repeats: int
    warmup: int
    threads: int
    layers: Sequence[str] | None
    device: str
    max_bytes: float
    max_seconds: float
    budget_seconds: float
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", _checked_lengths(self.lengths))
        if self.direction not in DIRECTIONS:
            raise unknown_name("direction", self.direction, DIRECTIONS)
        least = {"dim": 1, "heads": 2, "batch": 1, "repeats": 1, "warmup": 0, "threads": 1}
        for argument, lowest in least.items():
            value = getattr(self, argument)
            if not _is_whole(value) or value < lowest:
                raise wrong_value(argument, value, f"a whole number of at least {lowest}")
        for argument, most in {**dict.fromkeys(least, LARGEST), "threads": MOST_THREADS}.items():
            if getattr(self, argument) > most:
                raise wrong_value(argument, getattr(self, argument), f"at most {most}")
        if self.dim % self.heads:
            raise wrong_value("heads", self.heads, f"a divisor of dim = {self.dim}")
        for argument, unit in (("max_bytes", "bytes"), ("max_seconds", "seconds"), ("budget_seconds", "seconds")):
            if not getattr(self, argument) > 0:
                raise wrong_value(argument, getattr(self, argument), f"a positive number of {unit}")
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


def _checked_lengths(lengths: object) -> tuple[int, ...]:
    """The lengths in ascending order."""
    given = tuple(lengths) if isinstance(lengths, Sequence) else ()
    if not given or any(not _is_whole(length) or length < 1 for length in given) or len(set(given)) < len(given):
        raise wrong_value("lengths", lengths, "one or more different numbers of tokens, each a whole number from 1 on")
    for length in given:
        side = math.isqrt(length)
        if side**2 != length:
            nearest = f"{side**2} or {(side + 1) ** 2}"
            raise wrong_value("lengths", length, f"the cells of a square grid: {nearest}, not a number between squares")
    return tuple(sorted(given))


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
