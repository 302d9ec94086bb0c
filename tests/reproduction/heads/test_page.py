import re

import numpy as np
import pytest
from PIL import Image

from reproduction.heads.page import COLUMNS, head_finding, head_table, write_heads
from reproduction.heads.record import load_head_record
from tests.reproduction.heads.head_records import head_arrays


@pytest.fixture
def make(tmp_path):
    def record(*, changed=None, **options):
        np.savez(tmp_path / "heads.npz", **{**head_arrays(**options), **(changed or {})})
        return load_head_record(tmp_path / "heads.npz")

    return record


def maps(record):
    return [np.full((int(count), *record.grid), 1 / 35) for count in record.numbers["heads"][-1]]


def test_all_files_are_written_and_the_page_holds_everything(make, tmp_path):
    record = make()
    written = write_heads(
        record,
        maps(record),
        tmp_path / "out",
        query=(1, 2),
        num_images=1,
        name="a <b> & c",
        settings=[("Command", "x")],
    )
    names = [
        "heads.html",
        "head_centers.png",
        "attention_maps.png",
        "head_grid.png",
        "accuracy.png",
        "heads.gif",
    ]
    assert [path.name for path in written.files] == names
    assert {path.name for path in (tmp_path / "out").iterdir()} == set(names)
    for path in written.files[1:]:
        with Image.open(path) as picture:
            picture.verify()
    page = written.files[0].read_text(encoding="utf-8")
    assert "a &lt;b&gt; &amp; c" in page
    assert not re.search(r'(?:src|href)="(?!data:|#)', page)
    assert page.count('class="curve frame"') == 3
    assert re.search(r'<input type="range"[^>]* max="2" value="2"', page)
    assert re.findall(r'data-name="([^"]*)"', page) == ["start", "epoch 1", "epoch 2"]
    # Without a script the last frame alone is seen.
    assert len(re.findall(r'class="curve frame"[^>]* hidden', page)) == 2
    assert all('alt="' in tag for tag in re.findall(r"<img[^>]*>", page))


def test_one_moment_has_no_slider_and_no_accuracy_no_picture(make, tmp_path):
    nothing = {name: np.full(1, np.nan) for name in ("validation_accuracy", "train_accuracy")}
    record = make(moments=1, changed=nothing)
    written = write_heads(
        record, maps(record), tmp_path / "out", query=(1, 2), num_images=1, name="x"
    )
    assert "accuracy.png" not in {path.name for path in written.files}
    page = written.files[0].read_text(encoding="utf-8")
    assert "<input" not in page
    assert 'id="accuracy"' not in page


def test_a_file_is_no_folder(make, tmp_path):
    record = make()
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="out must be"):
        write_heads(record, maps(record), tmp_path / "file", query=(1, 2), num_images=1, name="x")


def test_the_table_has_first_and_last_numbers(make):
    changed = {
        "window_3": np.array([[1, 2], [7, 7], [9, 4]]),
        "chance_window_3": np.array([2.31, 2.35]),
        "spread": np.array([[1.0, 1.0], [3.0, 3.0], [0.123, 2.0]]),
    }
    rows = head_table(make(changed=changed))
    first = dict(zip(COLUMNS, rows[0], strict=True))
    assert first["of 3 × 3 taken"] == "1 → 9"
    assert first["spread"] == "1.00 → 0.12"
    assert rows[1][list(COLUMNS).index("of 3 × 3 taken") + 1] == "2.4"
    assert [row[:2] for row in rows] == [("1", "3"), ("2", "2")]


def test_the_finding_says_what_is_taken_and_how_many_look_at_one_place(make):
    window, none = np.array([[1, 2], [7, 7], [9, 4]]), np.zeros((3, 2))
    words = head_finding(make(changed={"window_3": window, "local": none}))
    assert "heads take 1 and 2 at the start in layers 1 to 2, and 9 and 4 at epoch 2" in words
    assert "None of the 5 heads has half" in words
    assert "1 of the 5 heads has" in head_finding(
        make(changed={"local": np.array([[0, 0], [0, 0], [0, 1]])})
    )
    assert "3 of the 5 heads have" in head_finding(
        make(changed={"local": np.array([[0, 0], [0, 0], [2, 1]])})
    )


def test_notes_tell_gaussians_from_tables_and_position_from_content(make, tmp_path):
    def page(record, num_images):
        written = write_heads(
            record, maps(record), tmp_path / "out", query=(1, 2), num_images=num_images, name="x"
        )
        return " ".join(written.files[0].read_text(encoding="utf-8").split())

    gaussian = page(make(moments=1), 1)
    assert "centers of the heads&#39; Gaussians" in gaussian
    assert "What content adds" not in gaussian
    assert "row 1, column 2 (black square) after the last epoch, by position alone." in gaussian
    table = page(make(moments=1, gaussian=False, changed={"content": np.array("softmax")}), 100)
    assert "means of the heads&#39; attention" in table
    assert "What content adds is not in it" in table
    assert "mean of 100 test images" in table
