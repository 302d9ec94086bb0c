"""The learning curve of one training run, and its values between the measured points."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LearningCurve:
    """What was measured on held-out images during one training run.

    Args:
        steps: Optimizer steps at each point, increasing.
        process_seconds: CPU seconds of the training steps up to each point.
        accuracy: Share of the held-out images classified right.
        loss: Mean loss over them.
    """

    steps: tuple[int, ...]
    process_seconds: tuple[float, ...]
    accuracy: tuple[float, ...]
    loss: tuple[float, ...]

    def accuracy_at_step(self, step: int) -> float | None:
        """Accuracy at a step, linear between points; None before the first and after the last."""
        return _interpolate(step, self.steps, self.accuracy)

    def seconds_at_step(self, step: int) -> float | None:
        """CPU seconds up to a step, linear between points; None before the first and after the last."""
        return _interpolate(step, self.steps, self.process_seconds)

    def accuracy_at_seconds(self, seconds: float) -> float | None:
        """Accuracy at a CPU time, linear between points; None before the first and after the last."""
        return _interpolate(seconds, self.process_seconds, self.accuracy)


def _interpolate(place: int | float, places: Sequence[int] | Sequence[float], values: Sequence[float]) -> float | None:
    if not places[0] <= place <= places[-1]:
        return None
    after = bisect_left(places, place)
    if places[after] == place:
        return values[after]
    share = (place - places[after - 1]) / (places[after] - places[after - 1])
    return values[after - 1] + share * (values[after] - values[after - 1])
