"""How a field of a study's runs is chosen before the study proper."""

from collections.abc import Mapping
from dataclasses import dataclass

from teka.errors import wrong_value


@dataclass(frozen=True)
class Tune:
    """How a field of the runs is chosen for each level of some factors, before the study proper.

    Every value is trained at each level of the factors `per`, with every other factor at the levels of one place or of
    several; the value with the lowest loss on held-out images, in the mean of the places, is taken.

    Args:
        field: The field of `Run`.
        values: The values tried.
        per: Factors for whose levels it is chosen.
        at: The places: for each, the level of every other factor.
        seed: Seed of these runs.

    Raises:
        ValueError: No values or no place.
    """

    field: str
    values: tuple[object, ...]
    per: tuple[str, ...]
    at: tuple[Mapping[str, str], ...]
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.values:
            raise wrong_value("tune.values", list(self.values), "one value or more")
        if not self.at:
            raise wrong_value("tune.at", list(self.at), "one place or more")
