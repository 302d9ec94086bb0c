import dataclasses
import json

import pytest
import torch

from teka.audit.statistics.metrics import CURVES
from teka.codec import decode, encode
from teka.training.shift.measure import (
    ShiftSettings,
    check_same_data,
    make_examples,
    make_report,
    measure,
)
from teka.training.shift.report import ShiftReport


@pytest.fixture(scope="module")
def responses(trained_on_canvas):
    return measure(trained_on_canvas, ShiftSettings(max_shift=2))


def test_the_report_holds_every_shift_along_both_axes(trained_on_canvas, responses):
    settings = ShiftSettings(max_shift=2)
    report = make_report([trained_on_canvas], [responses], settings, "teka shift")
    saved = json.loads(json.dumps(encode(report)))
    model = saved["models"][0]
    assert {"dataset", "command", "teka", "torch", "models"} <= set(saved)
    assert list(model["accuracy_by_shift"]["dx"]) == ["-2", "-1", "0", "1", "2"]
    assert list(model["accuracy_by_shift"]["dy"]) == ["-2", "-1", "0", "1", "2"]
    assert model["backend"] == "linear"
    assert decode(ShiftReport, saved) == report
    assert report.models[0].name == trained_on_canvas.name


def test_the_accuracy_is_that_of_the_images_rolled(trained_on_canvas, responses):
    test = trained_on_canvas.dataset.test
    with torch.inference_mode():
        moved = torch.roll(test.images, (0, 2), dims=(2, 3))
        right = (trained_on_canvas.model(moved).argmax(dim=1) == test.labels).double().mean().item()
    accuracy = CURVES["accuracy"].values(responses)
    assert accuracy is not None
    assert accuracy[responses.along(1)[2]] == pytest.approx(right)


def test_the_examples_are_what_the_models_saw(trained_on_canvas, responses):
    examples = make_examples([trained_on_canvas], [responses], ShiftSettings(max_shift=2))
    images, shifts = examples.images, examples.shifts
    still, right = shifts.index((0, 0)), shifts.index((0, 2))
    assert (images[right][:, :, 2:] == images[still][:, :, :-2]).all()
    assert images.shape[2:] == (14, 14)
    with torch.inference_mode():
        answers = trained_on_canvas.model(images[right][:, None] / 255).argmax(dim=1)
    assert examples.predictions[trained_on_canvas.name][right] == answers.tolist()


def test_a_canvas_holds_images_that_could_not_be_shifted_without_loss(trained):
    with pytest.raises(ValueError, match="only background"):
        measure(trained, ShiftSettings(max_shift=2, mode="lossless"))
    responses = measure(trained, ShiftSettings(max_shift=2, mode="canvas"))
    assert responses.movement.canvas_size == (12, 12)
    assert measure(trained, ShiftSettings(max_shift=1, mode="canvas")).movement.canvas_size == (
        10,
        10,
    )


def test_the_default_shifts_images_without_a_margin_and_fills_with_background(trained):
    responses = measure(trained, ShiftSettings(max_shift=2))
    test = trained.dataset.test
    moved = torch.zeros_like(test.images)
    moved[..., 2:] = test.images[..., :-2]
    with torch.inference_mode():
        predictions = trained.model(moved).argmax(dim=1)
    assert responses.predictions is not None
    assert torch.equal(responses.predictions[responses.shifts.index((0, 2))].long(), predictions)


def test_models_that_a_report_would_refuse_are_refused_before_they_are_measured(trained, tmp_path):
    twin = dataclasses.replace(trained, folder=tmp_path)
    with pytest.raises(
        ValueError,
        match=rf"seed of {tmp_path} must be one for each model, but .* is 'rotary, posi.*got 0",
    ):
        check_same_data([trained, twin])
    wider = trained.run.replace(seed=1, dim=16).make_model(**trained.dataset.sizes)
    with pytest.raises(
        ValueError, match=rf"parameters of {tmp_path} must be .* as in .*, which is 'rotary, posi"
    ):
        check_same_data(
            [trained, dataclasses.replace(twin, run=trained.run.replace(seed=1), model=wider)]
        )


def test_figure_1_shifts_along_dx_alone(trained):
    settings = ShiftSettings(max_shift=8, selection="figure1")
    assert settings.shifts == tuple((0, step) for step in range(-8, 9))
    with pytest.raises(ValueError, match="selection"):
        settings.images(trained.dataset.test)


@pytest.mark.parametrize(
    ("field", "value"), [("max_shift", 0), ("mode", "losless"), ("selection", "figure2")]
)
def test_bad_settings_are_errors_that_name_the_field(field, value):
    with pytest.raises(ValueError, match=field):
        ShiftSettings(**{field: value})


def test_runs_on_different_images_cannot_be_compared(trained, trained_on_canvas):
    settings = ShiftSettings(max_shift=1, mode="canvas")
    accuracies = [measure(run, settings) for run in (trained, trained_on_canvas)]
    with pytest.raises(ValueError, match="image_size"):
        make_report([trained, trained_on_canvas], accuracies, settings, "")
