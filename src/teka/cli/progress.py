"""Progress of commands that take more than a few seconds."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

from rich import progress
from rich.console import Console

from teka.errors import printable

SECONDS_PER_LINE = 5.0


@contextlib.contextmanager
def show_progress() -> Iterator[Callable[..., None]]:
    """Yield a function that shows progress and the time left on standard error.

    The arguments of the function are the name of a stage, the number of finished steps, the number
    of all steps or None if it is unknown, and optionally a note.

    On a terminal, the function shows a progress bar. Otherwise, such as in a log file, it prints at
    most one line every five seconds. A shorter command prints none.
    """
    console = Console(stderr=True, markup=False, highlight=False)
    bar = progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[note]}", markup=False),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    last_line = time.monotonic()

    def show(stage: str, done: int, total: int | None, note: str = "") -> None:
        nonlocal last_line
        stage = printable(stage)
        note = printable(note)
        if not bar.tasks or bar.tasks[-1].description != stage:
            for task_id in bar.task_ids:
                bar.remove_task(task_id)
            bar.add_task(stage, completed=done, total=total, note=note)
        task = bar.tasks[-1]
        bar.update(task.id, completed=done, total=total, note=note)
        if bar.disable and time.monotonic() - last_line >= SECONDS_PER_LINE:
            last_line = time.monotonic()
            left = task.time_remaining
            words = [f"{stage}: {done}" if total is None else f"{stage}: {done} of {total}"]
            words += [] if left is None else [f"{timedelta(seconds=round(left))} left"]
            words += [note] if note else []
            print(*words, sep=", ", file=sys.stderr, flush=True)

    with bar:
        yield show
