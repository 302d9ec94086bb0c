from teka.cli.parser import progress_bar


def test_where_there_is_no_terminal_a_step_is_a_line_if_lines_are_asked_for_and_nothing_else(capsys):
    for lines in (False, True):
        with progress_bar(lines=lines) as show:
            show("cells", 0, 2, "")
            show("cells", 1, 2, "softmax [0]")
        shown = capsys.readouterr()
        assert shown.err == ""
        assert shown.out == ("cells 0/2\ncells 1/2 softmax [0]\n" if lines else "")
