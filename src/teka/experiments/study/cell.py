"""One cell of a study: a run and where it stands in the grid."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from teka.training import Run


@dataclass(frozen=True)
class Cell:
    """A run and the level of every factor that made it.

    Args:
        labels: The level of every factor.
        run: The run; its `data_dir` is left open, as where the data lie changes no number.
    """

    labels: Mapping[str, str]
    run: Run

    @property
    def name(self) -> str:
        """The levels and the seed, fit for a file's name."""
        return "--".join([*(slug(level) for level in self.labels.values()), f"seed-{self.run.seed}"])


def slug(words: str) -> str:
    """Words as a part of a file's name: lower case, with a dash for whatever is no letter, digit or dot within.

    Args:
        words: The words.
    """
    return re.sub(r"[^\w.]+", "-", words.lower()).strip("-.")
