"""The time of a measurement: what it may take, and what is left."""

import time
from collections.abc import Callable

from teka.errors import wrong_value


class Pace:
    """The time of a measurement, from its making on.

    Args:
        budget_seconds: Time that the measurement may take, or None.
        progress: Called with the entries done, their total and the seconds left, or None.

    Raises:
        ValueError: A budget that is no positive number.
    """

    def __init__(
        self, budget_seconds: float | int | None = None, progress: Callable[[int, int, float], None] | None = None
    ) -> None:
        if budget_seconds is not None and not budget_seconds > 0:
            raise wrong_value("budget_seconds", budget_seconds, "a positive number of seconds, or None")
        self._budget, self._progress = budget_seconds, progress
        self._since = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self._since

    @property
    def expired(self) -> bool:
        """Whether the budget is spent."""
        return self._budget is not None and self.seconds >= self._budget

    def report(self, asked: int, done: int, total: int) -> None:
        """Tell the caller how far it is; the time left is that of the rest at the pace so far, within the budget.

        Args:
            asked: Entries that the model was asked for since the beginning.
            done: Entries done, with those of earlier starts and those that need no asking.
            total: All entries.
        """
        if self._progress is None:
            return
        left = self.seconds / asked * (total - done)
        if self._budget is not None:
            left = min(left, max(self._budget - self.seconds, 0.0))
        self._progress(done, total, left)
