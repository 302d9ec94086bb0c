import pytest
from tests.experiments.reproduce.reproduction_cells import photograph_cell, reproduction_cell

from teka.experiments.reproduce.page import write_reproduction

MODEL = "Performer (absolute)"


def test_the_table_is_written_three_times_and_the_figure_in_both_forms(study_folder, study_cell):
    cells = [reproduction_cell(study_cell, MODEL, seed=seed) for seed in (0, 1)]
    folder = study_folder(*cells, photograph_cell(study_cell, MODEL))
    written = write_reproduction(folder, description="A small one.", planned=9)
    assert [path.name for path in written.files] == [
        "table1.md", "table1.csv", "reproduction.html", "figure1.png", "figure1_all_classes.png"
    ]  # fmt: skip
    assert all(path.is_file() for path in written.files)
    page, text = written.page.read_text(encoding="utf-8"), written.markdown.read_text(encoding="utf-8")
    for part in ("91.0 ± 1.4", "3 of 9 models trained, 6 not there yet", "two cores"):
        assert part in page
        assert part in text
    assert part in written.terminal
    assert "A small one." in page
    assert page.count("data:image/png;base64,") == 2
    assert 'src="http' not in page
    assert "teka study study.yaml" in page


def test_without_shifted_images_there_is_no_figure(study_folder, study_cell):
    written = write_reproduction(study_folder(photograph_cell(study_cell, MODEL)))
    assert written.pictures == ()
    assert "under shifts" not in written.terminal


def test_without_any_result_nothing_is_written(tmp_path):
    with pytest.raises(ValueError, match="expected a study's folder"):
        write_reproduction(tmp_path)
    assert list(tmp_path.iterdir()) == []
