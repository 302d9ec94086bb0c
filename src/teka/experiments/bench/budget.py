"""How many rounds there is time for."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

FEWEST_ROUNDS = 3
"""Timed rounds at least, as long as the budget as a whole allows it."""


@dataclass(frozen=True)
class Pace:
    """Until when the rounds of one size may go on, in readings of `time.perf_counter`.

    Args:
        share_end: End of the time that is meant for this size.
        budget_end: End of the whole budget.
    """

    share_end: float = math.inf
    budget_end: float = math.inf

    def allows_warmup(self, round_seconds: float, repeats: int) -> bool:
        """Whether a round that does not count leaves time for all that do.

        Args:
            round_seconds: What a round takes.
            repeats: Rounds that are to count.
        """
        return time.perf_counter() + (1 + repeats) * round_seconds <= self.share_end

    def allows_round(self, num_done: int, round_seconds: float) -> bool:
        """Whether there is time for one more round that counts; always for the first.

        Up to three rounds may take more than this size's share, but no more than the budget has.

        Args:
            num_done: Rounds that count so far.
            round_seconds: What the last one took.
        """
        end = self.budget_end if num_done < FEWEST_ROUNDS else min(self.share_end, self.budget_end)
        return num_done == 0 or time.perf_counter() + round_seconds <= end


@dataclass(frozen=True)
class Budget:
    """Time for a whole benchmark, which runs from the making of this.

    Args:
        seconds: How much.
        start: Reading of `time.perf_counter` at the beginning.
    """

    seconds: float
    start: float = field(default_factory=lambda: time.perf_counter())

    def left(self) -> float:
        """Seconds that are left, 0 at least."""
        return max(0.0, self.seconds - (time.perf_counter() - self.start))

    def pace(self, lengths: Sequence[int]) -> Pace:
        """Until when the first of some sizes may be timed.

        Its share of what is left is in proportion to the root of its tokens. A size takes time in proportion to its
        tokens at least, so that small sizes get more rounds than large ones.

        Args:
            lengths: Numbers of tokens that are still to come.
        """
        roots = [math.sqrt(length) for length in lengths]
        left = self.left()
        now = time.perf_counter()
        return Pace(now + left * roots[0] / sum(roots), now + left)
