"""What a procedure of the literature gave."""

from collections.abc import Mapping
from dataclasses import dataclass

from teka.audit.statistics.estimate import Estimate
from teka.audit.statistics.metrics import Metrics


@dataclass(frozen=True)
class PresetResult:
    """What a procedure of the literature gave.

    Args:
        name: The preset's name.
        procedure: What was done, in a sentence.
        source: The paper, and the code where the paper leaves things open.
        counts: Numbers of images, passes and the like.
        numbers: The source's numbers, with intervals.
        metrics: Where the procedure moves images along a set of shifts, all metrics, by the images they are of.
    """

    name: str
    procedure: str
    source: str
    counts: dict[str, int]
    numbers: dict[str, Estimate]
    metrics: dict[str, Metrics]

    def to_dict(self) -> dict[str, object]:
        """The fields, ready for JSON."""
        return {
            **vars(self),
            "numbers": {name: number.to_dict() for name, number in self.numbers.items()},
            "metrics": {name: one.to_dict() for name, one in self.metrics.items()},
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, object]) -> "PresetResult":
        """What `to_dict` wrote."""
        fields = dict(content)
        for name, kind in (("numbers", Estimate), ("metrics", Metrics)):
            fields[name] = {key: kind.from_dict(value) for key, value in fields[name].items()}  # pyright: ignore
        return cls(**fields)  # pyright: ignore[reportArgumentType]
