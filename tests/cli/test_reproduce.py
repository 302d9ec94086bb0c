import pytest

from teka.cli import main
from teka.experiments.reproduce import read_reproduction


def test_the_list_names_every_model_data_set_and_seed(capsys):
    assert main(["reproduce", "table1", "--list"]) == 0
    shown = capsys.readouterr().out
    study = read_reproduction("small")
    for name in (*study.factors["data"], *study.factors["model"], *map(str, study.seeds)):
        assert name in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["figure2"], "target is 'figure2'", id="an unknown target"),
        pytest.param(["table1", "--scale", "huge"], "scale is 'huge'", id="an unknown scale"),
        pytest.param(["figure1", "--only", "model=AlexNet"], "only model of figure1 is 'AlexNet'", id="no Performer"),
        pytest.param(["table1", "--only", "model"], "only is 'model'", id="no level"),
        pytest.param(["table1", "--summary"], "expected a study's folder", id="nothing trained yet"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, capsys, tmp_path):
    assert main(["reproduce", *arguments, "--out", str(tmp_path / "none")]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert len(shown.err.strip().splitlines()) == 1
    assert shown.out == ""
