import pytest

from teka.cli import main
from teka.training import Run, train

TINY = Run.of(
    image_size=8, train_size=64, validation_size=32, model="self_attention", position="table", content="softmax", dim=6,
    depth=2, heads=(3, 2), epochs=1, batch_size=32,
)  # fmt: skip
FILES = {"heads.html", "heads.gif", "head_centers.png", "attention_maps.png", "head_grid.png", "accuracy.png"}


@pytest.fixture(scope="module")
def network_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("network") / "run"
    train(TINY, folder, command="teka train")
    return folder


def test_it_writes_the_pictures_and_the_page_into_the_run(network_folder, capsys):
    assert main(["heads", str(network_folder)]) == 0
    assert {path.name for path in (network_folder / "heads").iterdir()} == FILES
    shown = capsys.readouterr().out
    assert "of 3 × 3 taken" in shown
    assert "of the 5 heads" in shown


def test_the_query_and_the_folder_can_be_chosen(network_folder, tmp_path):
    assert main(["heads", str(network_folder), "--query", "0", "3", "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "heads.html").read_text(encoding="utf-8")
    assert "row 0, column 3" in page
    assert "table and softmax" in page


def test_bad_input_is_one_line(network_folder, trained_folder, tmp_path, fails):
    message = fails("heads", network_folder, "--query", "4", "0", "--out", tmp_path / "out")
    assert "query is (4, 0), expected a row from 0 to 3 and a column from 0 to 3" in message
    assert not (tmp_path / "out").exists()
    assert "expected a run of model 'self_attention'; its model is 'performer'" in fails("heads", trained_folder)
    assert "run.json" in fails("heads", tmp_path)


def test_a_run_without_a_record_is_named(tmp_path, fails):
    train(TINY.replace(content=None), tmp_path / "run")
    (tmp_path / "run" / "heads.npz").unlink()
    assert "heads.npz is not a file" in fails("heads", tmp_path / "run")
