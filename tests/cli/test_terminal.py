from teka.cli.terminal import print_table, progress_bar


def test_where_there_is_no_terminal_a_step_is_a_line_if_lines_are_asked_for_and_nothing_else(capsys):
    for lines in (False, True):
        with progress_bar(lines=lines) as show:
            show("cells", 0, 2, "")
            show("cells", 1, 2, "softmax [0]")
        shown = capsys.readouterr()
        assert shown.err == ""
        assert shown.out == ("cells 0/2\ncells 1/2 softmax [0]\n" if lines else "")


def test_a_table_is_as_wide_as_it_needs_with_numbers_to_the_right_and_brackets_as_they_are(capsys):
    name = "a folder/" * 20 + "[seven].png"
    print_table(["picture", "share"], [[name, "9.1%"], ["two", "100.0%"]], numbers=("share",))
    first, second, third = capsys.readouterr().out.splitlines()
    assert second == f"{name}    9.1%"
    assert third == f"two{'100.0%':>{len(second) - 3}}"
    assert first.startswith("picture")
    assert len(first) == len(second)
