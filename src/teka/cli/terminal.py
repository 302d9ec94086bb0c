"""Progress on a terminal, and plain text where there is none."""

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Show = Callable[[str, int, int | None, str], None]


@contextlib.contextmanager
def progress_bar(*, lines: bool = False) -> Iterator[Show]:
    """A bar at standard error for as long as the block runs, and what moves it: a stage, steps of all, and a note.

    It appears with the first step, so that none stands above an error of what was asked for. Where there is no terminal
    nothing is written, or a line for each step at standard output: standard error is for what is wrong.
    """
    console = Console(stderr=True, markup=False, highlight=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    note = TextColumn("{task.fields[note]}", markup=False)
    stages: list[str] = []
    with Progress(
        *columns, TimeRemainingColumn(), note, console=console, transient=True, disable=not console.is_terminal
    ) as bar:

        def show(stage: str, done: int, total: int | None, text: str) -> None:
            if lines and not console.is_terminal:
                print(f"{stage} {done}/{total} {text}".rstrip(), flush=True)
            if stages[-1:] != [stage]:  # whose time counts from here
                for task in bar.task_ids:
                    bar.remove_task(task)
                stages.append(stage)
                bar.add_task(stage, completed=done, total=total, note=text)
            bar.update(bar.task_ids[-1], completed=done, total=total, note=text)

        yield show
