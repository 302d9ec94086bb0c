"""Progress and tables on a terminal, and plain text where there is none."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

Show = Callable[[str, int, int | None, str], None]
WIDEST = 10_000  # of a table that goes into a file


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


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[str] = ()) -> None:
    """Print aligned columns: names to the left, those headed by one of `numbers` to the right."""
    width = None if sys.stdout.isatty() else WIDEST
    console = Console(markup=False, highlight=False, emoji=False, width=width)
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in numbers else "left", header_style="")
    for row in rows:
        table.add_row(*row)
    console.print(table)
