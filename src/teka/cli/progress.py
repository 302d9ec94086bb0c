"""Progress display for commands that take more than a few seconds."""

import sys
import time
from datetime import timedelta

from rich import progress
from rich.console import Console

from teka.errors import escape_unprintable

SECONDS_PER_LINE = 5.0


class ProgressDisplay(progress.Progress):
    """Progress display on standard error with the current stage and the remaining time.

    On a terminal, it is a progress bar. Elsewhere, for example in a log file, it prints at most one
    line every five seconds.
    """

    def __init__(self) -> None:
        console = Console(stderr=True, markup=False, highlight=False)
        super().__init__(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.add_task("", visible=False)
        self.last_line_time = time.monotonic()

    def show(self, stage: str, done: int, total: int) -> None:
        """Show that `done` of the `total` steps of a stage are finished.

        This also shows a display again that `stop` has hidden.
        """
        self.start()
        stage = escape_unprintable(stage)
        task = self.tasks[0]
        if task.description != stage:
            self.reset(task.id, description=stage, visible=True)
        self.update(task.id, completed=done, total=total)
        now = time.monotonic()
        if self.disable and now - self.last_line_time >= SECONDS_PER_LINE:
            self.last_line_time = now
            seconds = task.time_remaining
            time_left = "" if seconds is None else f", {timedelta(seconds=round(seconds))} left"
            print(f"{stage}: {done} of {total}{time_left}", file=sys.stderr, flush=True)
