"""Tables for the terminal and Markdown."""

import io
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace

from teka.errors import one_line, printable, shorten

GAP = 2
WIDTH = 120  # default width of a table in characters
WIDEST = 10_000  # width of a table whose names are never wrapped
LONGEST_CELL = 500  # maximum length of a line of a cell
LONGEST_TEXT = 2000  # maximum length of a paragraph
# Characters that start an element, an entity, emphasis, code, a link or a new cell.
_MARKS = re.compile(r"<(?=[a-zA-Z/!?])|&(?=[a-zA-Z#])|[\\\\`*~|\[\]]|(?<![^\W_])_|_(?![^\W_])")
_ENTITIES = {"<": "&lt;", "&": "&amp;"}


@dataclass(frozen=True)
class Table:
    """A table whose first column names the rows.

    Args:
        title: Title above the table, or an empty text.
        heads: Head of each column.
        rows: The cells of each row. A cell may have several lines.
        words: Heads of the columns, other than the first, that contain no numbers.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[str, ...] = ()

    def plain(self, width: int = WIDTH, *, narrowest: int = 40) -> str:
        """Return the table as text with aligned columns.

        If the table is too wide, names of rows are wrapped. If it is still too wide, the last
        columns continue below the first ones.

        Args:
            width: Characters of a line.
            narrowest: Smallest width of the first column.
        """
        self = replace(
            self,
            title=printable(self.title),
            heads=_clean(self.heads),
            rows=tuple(map(_clean, self.rows)),
        )
        columns = list(zip(self.heads, *self.rows, strict=True))
        sizes = [
            max(len(line) for cell in column for line in cell.split("\n")) for column in columns
        ]
        sizes[0] = min(sizes[0], max(narrowest, width - sum(size + GAP for size in sizes[1:])))
        blocks: list[list[int]] = [[0]]
        for column in range(1, len(columns)):
            block = [*blocks[-1], column]
            if len(block) > 2 and sum(sizes[index] + GAP for index in block) - GAP > width:
                blocks.append([0, column])
            else:
                blocks[-1] = block
        texts = [self._write_columns(block, sizes) for block in blocks]
        title = ["\n".join(textwrap.wrap(self.title, width))] if self.title else []
        return ("\n\n" if len(texts) > 1 else "\n").join([*title, *texts])

    def _write_columns(self, columns: Sequence[int], sizes: Sequence[int]) -> str:
        from rich.box import Box
        from rich.console import Console
        from rich.table import Table as Grid
        from rich.text import Text

        rule = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
        grid = Grid(
            box=rule, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0), header_style=None
        )
        for column in columns:
            head, width = self.heads[column], sizes[column]
            justify = "right" if column and head not in self.words else "left"
            no_wrap = column > 0
            grid.add_column(
                Text(head), justify=justify, width=width, no_wrap=no_wrap, overflow="fold"
            )
        for row in self.rows:
            grid.add_row(*(Text(row[column]) for column in columns))
        text = io.StringIO()
        width = sum(sizes) + GAP * len(sizes)
        Console(file=text, width=width, color_system=None, legacy_windows=False).print(grid)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())

    def markdown(self) -> str:
        """Return the table as Markdown, with the title as a heading of the third level."""
        rules = ("---", *["--:"] * (len(self.heads) - 1))
        lines = [
            [
                "<br>".join(markdown_text(part, LONGEST_CELL) for part in cell.split("\n"))
                for cell in line
            ]
            for line in (self.heads, *self.rows)
        ]
        body = "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rules, *lines[1:]))
        return f"### {markdown_text(self.title)}\n\n{body}" if self.title else body


def _clean(cells: tuple[str, ...]) -> tuple[str, ...]:
    """Return the cells with printable lines of limited length."""
    return tuple(
        "\n".join(shorten(printable(part), LONGEST_CELL) for part in cell.split("\n"))
        for cell in cells
    )


def markdown_text(text: str, most: int = LONGEST_TEXT) -> str:
    """Escape text that may contain Markdown, such as the name of a file, for one line."""
    return _MARKS.sub(lambda mark: _ENTITIES.get(mark[0], f"\\{mark[0]}"), one_line(text, most))
