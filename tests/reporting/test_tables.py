import re

import pytest

from teka.reporting.tables import WIDEST, Table

HEADS = ("name", *(f"head number {index}" for index in range(17)))
NAME = "a name that is " + "very " * 30 + "long"
ROWS = tuple((NAME, *(f"{index}.5 ± {index}" for index in range(17))) for _ in "ab")


@pytest.mark.parametrize(("width", "narrowest"), [(120, 40), (60, 14)])
def test_columns_that_do_not_fit_continue_below(width, narrowest):
    text = Table(HEADS, ROWS).to_text(width, narrowest=narrowest)
    assert max(map(len, text.splitlines())) <= width
    assert all(len(re.findall(rf"{head}(?!\d)", text)) == 1 for head in HEADS[1:])
    assert all(
        len(re.findall(rf"(?<!\d){index}\.5 ± {index}(?!\d)", text)) == 2 for index in range(17)
    )


def test_cells_of_several_lines_are_aligned_without_markup():
    text = Table(("[bold]model", "a\nb"), ((":smile: x", "1\n22"), ("y", "−3.0"))).to_text(80)
    assert text.splitlines() == [
        "                a",
        "[bold]model     b",
        "-----------------",
        ":smile: x       1",
        "               22",
        "y            −3.0",
    ]


def test_markdown_rows_have_the_same_number_of_cells():
    text = Table(("a | b", "c"), (("one \\ two", "3\n4"),)).to_markdown()
    assert text == "| a \\| b | c |\n| --- | --: |\n| one \\\\ two | 3<br>4 |"


def test_table_is_as_wide_as_its_content_and_aligns_numbers_right():
    name = "a folder/" * 20 + "[seven].png"
    rows = ((name, "7", "9.1%"), ("two", "twelve", "100.0%"))
    head, _, first, second = (
        Table(("picture", "class", "share"), rows, words=("class",)).to_text(WIDEST).splitlines()
    )
    assert first == f"{name}  7{'9.1%':>13}"
    assert second == f"{'two':<{len(name)}}  twelve  100.0%"
    assert head == f"{'picture':<{len(name)}}  class{'share':>9}"


HOSTILE = "=1+1|<img src=x>\x1b[2J\u202e`x`"


def test_text_table_has_no_control_characters_and_no_long_cells():
    shown = Table(("name", HOSTILE), ((HOSTILE, "7"), ("x" * 10_000, "8"))).to_text(WIDEST)
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert r"=1+1|<img src=x>\x1b[2J\u202e`x`" in shown
    assert "x" * 499 + "…" in shown
    assert "x" * 501 not in shown


def test_markdown_escapes_names():
    head, _, row = Table(("a_b *c*",), ((f"{HOSTILE}\nnext",),)).to_markdown().splitlines()
    shown = r"=1+1\|&lt;img src=x>\\x1b\[2J\\u202e\`x\`"
    assert head == r"| a_b \*c\* |"
    assert row == f"| {shown}<br>next |"
