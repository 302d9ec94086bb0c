"""A table of texts, written for the terminal and as Markdown."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 120
"""Columns of the terminal that a table fits into."""
NARROWEST_NAME = 40
GAP = 2


@dataclass(frozen=True)
class TextTable:
    """A table whose first column names the rows; its cells may have several lines.

    Args:
        title: What stands above it.
        heads: Heads of the columns.
        rows: The rows, with a text for each head.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def plain(self) -> str:
        """Aligned text, at most 120 columns wide: long names are wrapped, columns that do not fit continue below."""
        lines = (self.heads, *self.rows)
        widths = [max(_width(line[column]) for line in lines) for column in range(len(self.heads))]
        widths[0] = min(widths[0], max(NARROWEST_NAME, WIDTH - sum(width + GAP for width in widths[1:])))
        blocks = ["\n".join(textwrap.wrap(self.title, WIDTH))] if self.title else []
        start = 1
        while start < len(self.heads):
            end = start + 1
            while end < len(self.heads) and sum(width + GAP for width in widths[start : end + 1]) <= WIDTH - widths[0]:
                end += 1
            chosen = (0, *range(start, end))
            blocks.append(
                _block([[line[column] for column in chosen] for line in lines], [widths[at] for at in chosen])
            )
            start = end
        return "\n\n".join(blocks) if len(blocks) > 2 else "\n".join(blocks)

    def markdown(self) -> str:
        """A Markdown table below its title, a heading of the third level."""
        rules = ["---", *["--:"] * (len(self.heads) - 1)]
        lines = [self.heads, rules, *self.rows]
        body = "\n".join("| " + " | ".join(_escape(cell) for cell in line) + " |" for line in lines)
        return f"### {self.title}\n\n{body}" if self.title else body


def _width(cell: str) -> int:
    return max(map(len, cell.split("\n")))


def _block(lines: Sequence[Sequence[str]], widths: Sequence[int]) -> str:
    texts = []
    for line in lines:
        name, *cells = line
        columns = [textwrap.wrap(name, widths[0]) or [""], *(cell.split("\n") for cell in cells)]
        for height in range(max(map(len, columns))):
            parts = [column[height] if height < len(column) else "" for column in columns]
            first, *others = (f"{part:>{width}}" for part, width in zip(parts, widths, strict=True))
            texts.append((" " * GAP).join([f"{parts[0]:<{len(first)}}", *others]).rstrip())
        if line is lines[0]:
            texts.append("-" * (sum(widths) + GAP * (len(widths) - 1)))
    return "\n".join(texts)


def _escape(cell: str) -> str:
    return cell.replace("\\", "\\\\").replace("|", "\\|").replace("\n", "<br>")
