"""Every number that an audit gives of a model that was trained with several seeds."""

from collections.abc import Mapping
from dataclasses import dataclass

from teka.audit.statistics.metrics import Metrics


@dataclass(frozen=True)
class SeedMetrics:
    """Averages over seeds, and how far the seeds are apart.

    Args:
        num_seeds: Number of seeds K.
        metrics: The averages over seeds of what `Metrics` describes, with intervals for other seeds and other images.
        by_seed: Each number of each seed, in the order given.
        deviations: Standard deviation over seeds of each number, with K − 1 in the denominator; of K > 1 seeds.
        warning: Why the intervals do not speak of other seeds, if they do not.
    """

    num_seeds: int
    metrics: Metrics
    by_seed: dict[str, tuple[float, ...]]
    deviations: dict[str, float]
    warning: str | None = None

    def to_dict(self) -> dict[str, object]:
        """The numbers, ready for JSON."""
        return {
            "num_seeds": self.num_seeds,
            "metrics": self.metrics.to_dict(),
            "by_seed": {name: list(values) for name, values in self.by_seed.items()},
            "deviations": dict(self.deviations),
            "warning": self.warning,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, object]) -> "SeedMetrics":
        """What `to_dict` wrote."""
        fields = dict(content)
        fields["metrics"] = Metrics.from_dict(fields["metrics"])  # pyright: ignore[reportArgumentType]
        fields["by_seed"] = {name: tuple(values) for name, values in fields["by_seed"].items()}  # pyright: ignore
        return cls(**fields)  # pyright: ignore[reportArgumentType]
