"""Tables for the terminal and Markdown."""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from teka.errors import escape_unprintable, shorten, to_one_line

GAP = 2
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
        heads: Head of each column.
        rows: The cells of each row. A cell may have several lines.
        words: Heads of the columns, other than the first, that contain no numbers.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[str, ...] = ()

    def to_text(self, width: int, *, narrowest: int = 40) -> str:
        """Format the table as plain text with aligned columns.

        If the table is too wide, long row names are wrapped. If that is not enough, the last
        columns are printed below the first ones.

        Args:
            width: Maximum number of characters in a line.
            narrowest: Minimum width of the first column.
        """
        rows = [[_printable_lines(cell) for cell in row] for row in (self.heads, *self.rows)]
        columns = zip(*rows, strict=True)
        sizes = [max(len(line) for cell in column for line in cell) for column in columns]
        sizes[0] = min(sizes[0], max(narrowest, width - sum(size + GAP for size in sizes[1:])))
        for row in rows:
            wrapped = [textwrap.wrap(line, sizes[0], break_on_hyphens=False) for line in row[0]]
            row[0] = [part for parts in wrapped for part in parts or [""]]
        blocks = [[0]]
        for column in range(1, len(sizes)):
            block = [*blocks[-1], column]
            if len(block) > 2 and sum(sizes[index] + GAP for index in block) - GAP > width:
                blocks.append([0, column])
            else:
                blocks[-1] = block
        return "\n\n".join(self._format_columns(rows, block, sizes) for block in blocks)

    def _format_columns(
        self, rows: Sequence[Sequence[list[str]]], columns: Sequence[int], sizes: Sequence[int]
    ) -> str:
        lines = []
        for number, row in enumerate(rows):
            height = max(len(row[column]) for column in columns)
            cells = []
            for column in columns:
                blank = [""] * (height - len(row[column]))
                # Heads are aligned at the bottom, all other cells at the top.
                cell = row[column] + blank if number else blank + row[column]
                is_text = not column or self.heads[column] in self.words
                align = str.ljust if is_text else str.rjust
                cells.append([align(line, sizes[column]) for line in cell])
            lines += [(" " * GAP).join(parts).rstrip() for parts in zip(*cells, strict=True)]
            if not number:
                lines.append("-" * (sum(sizes[column] + GAP for column in columns) - GAP))
        return "\n".join(lines)

    def to_markdown(self) -> str:
        """Format the table as Markdown."""
        rules = ("---", *["--:"] * (len(self.heads) - 1))
        lines = [
            [
                "<br>".join(markdown_text(part, LONGEST_CELL) for part in cell.split("\n"))
                for cell in line
            ]
            for line in (self.heads, *self.rows)
        ]
        return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rules, *lines[1:]))


def _printable_lines(cell: str) -> list[str]:
    return [shorten(escape_unprintable(line), LONGEST_CELL) for line in cell.split("\n")]


def markdown_text(text: str, most: int = LONGEST_TEXT) -> str:
    """Escape a text, such as a file name, so that Markdown shows it literally and in one line."""
    return _MARKS.sub(lambda mark: _ENTITIES.get(mark[0], f"\\{mark[0]}"), to_one_line(text, most))
