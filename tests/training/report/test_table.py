import pytest

from teka.training.report.table import WIDTH, markdown_table, plain_table, table_rows


def test_every_model_has_a_line_for_each_axis_under_aligned_heads(report_of):
    lines = plain_table(report_of()).splitlines()
    assert lines[0].split() == ["model", "−3", "−2", "−1", "0", "+1", "+2", "+3", "worst", "parameters", "seconds"]
    assert lines[2].split() == ["absolute", "dx", "22.3", *["97.1"] * 5, "59.7", "21.3", "20,513", "41"]
    assert lines[3].split() == ["dy", "59.7", *["97.1"] * 5, "59.7"]
    ends = [lines[0].index(head) + len(head) for head in ("−3", "+3", "worst", "parameters", "seconds")]
    for line in (lines[2], lines[4], lines[6]):
        padded = f"{line} "
        assert all(padded[end - 1] != " " and padded[end] == " " for end in ends)


@pytest.mark.parametrize("reach", [1, 4, 8, 29])
@pytest.mark.parametrize(
    "name", ["a", "rotation, linear cost", "x" * 70, "a name of many words that cannot stand on one line"]
)
def test_the_table_fits_a_terminal_of_100_columns(report_of, model, reach, name):
    along = {str(shift): 1.0 for shift in range(-reach, reach + 1)}
    text = plain_table(report_of(model(name, accuracy_by_shift={"dx": along, "dy": along}, parameters=12345678)))
    assert max(map(len, text.splitlines())) <= WIDTH
    assert text.count(" 100") == 2 * len(along)


def test_nine_shifts_stand_on_one_line(report_of, model):
    along = {str(shift): 0.5 for shift in range(-4, 5)}
    text = plain_table(report_of(model("rotation, squared relu", accuracy_by_shift={"dx": along, "dy": along})))
    assert text.count("model") == 1


def test_shifts_that_were_not_measured_are_dashes(report_of, model):
    accuracy = {"dx": {"0": 0.5, "7": 0.25}, "dy": {"0": 0.5}}
    (row,) = table_rows(report_of(model(accuracy_by_shift=accuracy)))
    assert row.axes == (("dx", ("50.0", "25.0")), ("dy", ("50.0", "–")))
    assert row.lowest == ("dx", 1)


def test_an_axis_without_shifts_has_no_line(report_of, model):
    accuracy = {"dx": {"0": 0.5, "7": 0.25}, "dy": {}}
    (row,) = table_rows(report_of(model(accuracy_by_shift=accuracy)))
    assert [axis for axis, _ in row.axes] == ["dx"]


def test_several_seeds_are_one_row_of_means(report_of, model):
    (row,) = table_rows(report_of(*[model(seed=seed, accuracy=0.9 + seed / 50) for seed in range(3)]))
    assert set(row.axes[0][1]) == {"92.0"}
    assert "mean of 3 seeds" in plain_table(report_of(*[model(seed=seed) for seed in range(3)]))


def test_markdown_has_as_many_cells_in_every_row(report_of, model):
    text = markdown_table(report_of(model("one | two \\ three"), model("other")))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 2
    cells = [row.replace("\\|", "").count("|") for row in rows]
    assert set(cells) == {1 + 2 + 7 + 3}
    assert "one \\| two \\\\ three" in text


def test_a_long_name_is_wrapped_and_loses_nothing(report_of, model):
    along = {str(shift): 0.5 for shift in range(-8, 9)}
    name = "alpha beta gamma delta epsilon zeta eta theta"
    block = plain_table(report_of(model(name, accuracy_by_shift={"dx": along, "dy": along}))).split("\n\n")[0]
    assert [word for word in block.split() if word.isalpha() and word not in ("model", "dx", "dy")] == name.split()
    assert len(block.splitlines()) > 4
