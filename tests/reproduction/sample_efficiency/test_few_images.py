import itertools

import pytest
import torch

from reproduction.__main__ import run_command as main
from reproduction.sample_efficiency import few_images
from reproduction.sample_efficiency.accuracy_tables import (
    estimate_images_needed,
    write_sample_efficiency_page,
)
from reproduction.sample_efficiency.few_images import (
    CANVAS,
    draw_balanced_subset,
    draw_batch_indices,
    load_dataset_on_canvas,
    shift_test_images,
    train_with_few_images,
)
from reproduction.study import Study, read_study, run_study
from reproduction.study.results import RESULTS_FILE, load_saved_results

TINY = {"dim": 8, "depth": 1, "heads": 2, "patch_size": 4, "stem": "polyphase", "periodic": True}
STUDY = Study(
    "tiny",
    {
        "data": {"digits": {"data": "digits", "image_size": 16}},
        "training": {"as published": {}, "random shifts": {}},
        "model": {
            "rotary (default)": {**TINY, "pool": "mean"},
            "absolute": {**TINY, "pool": "mean", "position": "absolute"},
        },
        "images": {"100": {"train_size": 100}, "1000": {"train_size": 1000}},
    },
    base={"batch_size": 16, "random_shift": 0, "validation_size": 0},
    leave_out=({"training": ["random shifts"], "images": ["1000"]},),
    seeds=(10,),
)
LABELS = torch.arange(300) % 3


@pytest.fixture(scope="module", autouse=True)
def few_steps():
    """Train for six steps, with one saved state."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(few_images, "NUM_STEPS", 6)
        patched.setattr(few_images, "SAVE_EVERY", 4)
        yield


def train(folder, **only):
    run_study(STUDY, folder, train_study_model=train_with_few_images, only=only, command="python")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder of the small study with the results of all models."""
    path = tmp_path_factory.mktemp("results")
    train(path)
    return path


def test_every_result_is_one_line_of_one_file(folder):
    results = load_saved_results(folder / RESULTS_FILE)
    assert list(results) == sorted(study_model.name for study_model in STUDY.models())
    assert {path.name for path in folder.iterdir()} <= {RESULTS_FILE, "training"}
    for result in results.values():
        assert result["num_steps"] == 6
        assert 0 <= result["moved_accuracy"] <= 1
        assert result["command"] == "python"
        assert result["seconds"] > 0


def test_exact_models_predict_the_same_for_moved_images(folder):
    results = load_saved_results(folder / RESULTS_FILE)
    result = results["digits--as-published--rotary-default--1000--seed-10"]
    assert result["consistency"] == 1
    assert result["accuracy"] == result["moved_accuracy"]


def test_finished_models_are_kept(folder):
    before = (folder / RESULTS_FILE).read_bytes()
    train(folder)
    assert (folder / RESULTS_FILE).read_bytes() == before


def test_a_killed_training_is_resumed_with_the_same_result(folder, tmp_path, monkeypatch):
    original = few_images.draw_batch_indices

    def order_until_killed(*arguments):
        return *original(*arguments)[:5], torch.tensor([1_000_000])

    monkeypatch.setattr(few_images, "draw_batch_indices", order_until_killed)
    levels = {"training": ["random shifts"], "model": ["absolute"]}
    with pytest.raises(IndexError):
        train(tmp_path, **levels)
    assert not load_saved_results(tmp_path / RESULTS_FILE)
    monkeypatch.setattr(few_images, "draw_batch_indices", original)
    train(tmp_path, **levels)
    ((name, result),) = load_saved_results(tmp_path / RESULTS_FILE).items()
    whole = load_saved_results(folder / RESULTS_FILE)[name]
    assert result["seconds"] is None  # the time before the kill is not known
    for quantity in ("accuracy", "moved_accuracy", "consistency"):
        assert result[quantity] == whole[quantity], quantity


@pytest.mark.parametrize("num_images", [10, 64, 1000])
def test_every_size_has_the_same_number_of_steps(num_images):
    batches = draw_batch_indices(num_images, num_steps=7, batch_size=16, seed=10)
    assert [len(batch) for batch in batches] == [16] * 7
    counts = torch.cat(batches).bincount(minlength=num_images)
    assert counts.max() - counts.min() <= 1


def test_the_study_has_the_models_of_the_protocol():
    study = read_study(few_images.Path(few_images.__file__).with_name("study.yaml"))
    assert len(study.models()) == 378
    assert study.seeds == (10, 11, 12)


def test_images_needed_interpolates_on_a_logarithmic_scale():
    pandas = pytest.importorskip("pandas")
    accuracy = pandas.Series([0.5, 0.6, 0.7], index=[100, 1000, 10000])
    assert estimate_images_needed(accuracy, 0.65) == pytest.approx(10**3.5)
    assert estimate_images_needed(accuracy, 0.7) == pytest.approx(10000)
    assert estimate_images_needed(accuracy, 0.71) == float("inf")


def test_the_report_has_tables_and_a_figure(folder):
    text = write_sample_efficiency_page(STUDY, folder)
    assert "| trained models | 6 of 6 |" in text
    assert "| digits | as published | absolute |" in text
    assert (folder / "summary.md").is_file()
    assert (folder / "accuracy.png").is_file()


def test_the_command_writes_the_report(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("reproduction.study_commands.read_study", lambda _: STUDY)
    assert main(["sample-efficiency", "--out", str(folder), "--summary"]) == 0
    assert "| trained models | 6 of 6 |" in capsys.readouterr().out
    assert main(["sample-efficiency", "--out", str(tmp_path), "--summary"]) == 2
    assert main(["sample-efficiency", "--out", str(tmp_path), "--only", "model=none"]) == 2


def test_subsets_are_balanced_and_nested():
    subsets = [draw_balanced_subset(LABELS, size, seed=10) for size in (30, 90, 300)]
    for subset in subsets:
        assert LABELS[subset].bincount().tolist() == [len(subset) // 3] * 3
        assert len(set(subset.tolist())) == len(subset)
    for smaller, larger in itertools.pairwise(subsets):
        assert set(smaller.tolist()) < set(larger.tolist())


def test_subsets_depend_on_the_seed():
    first, again, other = (draw_balanced_subset(LABELS, 30, seed) for seed in (10, 10, 11))
    assert torch.equal(first, again)
    assert set(first.tolist()) != set(other.tolist())


def test_images_stand_in_the_middle_of_the_canvas():
    dataset = load_dataset_on_canvas("digits", 16, None)
    assert dataset.image_size == (CANVAS, CANVAS)
    assert len(dataset.validation) == 0
    assert not dataset.test.images[:, :, :8].any()
    assert dataset.test.images[:, :, 8:24, 8:24].any()


def test_images_with_a_margin_move_without_loss():
    images = load_dataset_on_canvas("digits", 16, None).test.images[:50]
    moved = shift_test_images(images, margin=8)
    torch.testing.assert_close(moved.sum(dim=(1, 2, 3)), images.sum(dim=(1, 2, 3)))
    assert not torch.equal(moved, images)


def test_images_that_fill_the_canvas_move_circularly():
    images = torch.rand(20, 1, CANVAS, CANVAS)
    moved = shift_test_images(images, margin=0)
    assert torch.equal(moved.flatten(1).sort().values, images.flatten(1).sort().values)


def test_all_models_see_the_same_moved_images():
    images = torch.rand(20, 1, CANVAS, CANVAS)
    first = shift_test_images(images, margin=0)
    torch.manual_seed(17)
    assert torch.equal(shift_test_images(images, margin=0), first)
