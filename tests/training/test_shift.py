import dataclasses
import json

import pytest
import torch

from teka.audit import AuditReport, AuditSettings, axis_shifts
from teka.training.shift import audit_run, compare_shifts


def settings(max_shift, mode="zero"):
    return AuditSettings(shifts=axis_shifts(max_shift), modes=(mode,), parts=())


def read_reports(folder):
    content = json.loads((folder / "report.json").read_text())
    return [AuditReport.from_dict(report) for report in content["reports"]]


def accuracy_at(report, shift):
    (metrics,) = report.metrics
    return metrics.curves["accuracy"].values[metrics.shifts.index(shift)]


def test_report_holds_every_shift_along_both_axes(trained_on_canvas, tmp_path):
    written = compare_shifts([trained_on_canvas], settings(2), tmp_path, command="teka shift")
    names = {"report.json", "report.html"}
    assert {path.name for path in written.files} == names
    (report,) = read_reports(tmp_path)
    assert report.name == trained_on_canvas.name
    assert report.provenance["command"] == "teka shift"
    assert set(report.metrics[0].shifts) == set(axis_shifts(2))
    assert len(report.metrics[0].shifts) == 9
    assert f"{trained_on_canvas.name}, dx" in written.terminal
    assert f"{trained_on_canvas.name}, dy" in written.terminal


def test_accuracy_is_that_of_the_shifted_images(trained_on_canvas):
    report = audit_run(trained_on_canvas, settings(2, "circular"))
    test = trained_on_canvas.dataset.test
    with torch.inference_mode():
        logits = trained_on_canvas.model(torch.roll(test.images, (0, 2), dims=(2, 3)))
    accuracy = (logits.argmax(dim=1) == test.labels).double().mean().item()
    assert accuracy_at(report, (0, 2)) == pytest.approx(accuracy)


def test_background_enters_by_default(trained):
    report = audit_run(trained, settings(2))
    test = trained.dataset.test
    shifted = torch.zeros_like(test.images)
    shifted[..., 2:] = test.images[..., :-2]
    with torch.inference_mode():
        accuracy = (trained.model(shifted).argmax(dim=1) == test.labels).double().mean().item()
    assert accuracy_at(report, (0, 2)) == pytest.approx(accuracy)


def test_canvas_holds_images_that_could_not_be_shifted_without_loss(trained):
    with pytest.raises(ValueError, match="only background"):
        audit_run(trained, settings(2, "lossless"))
    image_size = trained.model.image_size
    report = audit_run(trained, settings(2, "canvas"))
    assert report.metrics[0].movement.canvas_size == (12, 12)
    assert trained.model.image_size == image_size


def test_curve_and_table_are_means_over_seeds(trained, tmp_path):
    torch.manual_seed(0)
    model = trained.run.make_model(**trained.dataset.sizes).eval()
    other = dataclasses.replace(trained, run=trained.run.replace(seed=1), model=model)
    written = compare_shifts([trained, other], settings(1), tmp_path)
    first, second = read_reports(tmp_path)
    assert (first.name, second.name) == ("rotary, positive, seed 0", "rotary, positive, seed 1")
    mean = (accuracy_at(first, (0, 1)) + accuracy_at(second, (0, 1))) / 2
    (row,) = [line for line in written.terminal.splitlines() if "positive, dx" in line]
    assert row.split()[-2] == f"{100 * mean:.1f}"


def test_runs_that_cannot_be_compared_are_an_error(trained, trained_on_canvas, tmp_path):
    with pytest.raises(ValueError, match="image_size"):
        compare_shifts([trained, trained_on_canvas], settings(1), tmp_path)
    with pytest.raises(ValueError, match="runs must be one run for each model and seed"):
        compare_shifts([trained, trained], settings(1), tmp_path)
