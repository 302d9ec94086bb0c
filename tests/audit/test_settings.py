import numpy as np
import pytest
import torch

from teka.audit import square_shifts
from teka.audit.settings import AuditSettings


def test_default_shifts_are_a_square_that_fits_the_images():
    assert AuditSettings().shifts_for((32, 40)) == square_shifts(4)
    assert AuditSettings().shifts_for((9, 40)) == square_shifts(2)


def test_shifts_include_zero_and_numbers_apply_to_the_last_axis():
    assert AuditSettings(shifts=[3, (1, 0), (0, 3)]).shifts_for((9, 9)) == ((0, 0), (0, 3), (1, 0))
    for table in (np.array([[0, 3]]), torch.tensor([[0, 3]])):
        assert AuditSettings(shifts=table).to_dict((9, 9))["shifts"] == [[0, 0], [0, 3]]


def test_canvas_and_crop_sizes_leave_room_for_every_shift():
    settings = AuditSettings(shifts=[(0, 3), (-1, 0)])
    assert settings.movement("canvas", (9, 11)).canvas_size == (11, 17)
    assert settings.movement("crop", (9, 11)).crop_size == (7, 5)
    assert settings.movement("zero", (9, 11)).canvas_size is None


def test_explicit_sizes_are_kept():
    settings = AuditSettings(shifts=[(0, 1)], canvas_size=20, crop_size=(4, 5))
    assert settings.movement("canvas", (9, 11)).canvas_size == 20
    assert settings.movement("crop", (9, 11)).crop_size == (4, 5)


def test_fractional_shifts_need_a_whole_pixel_of_room():
    assert AuditSettings(shifts=[(0.5, 1.25)]).movement("canvas", (9, 9)).canvas_size == (11, 13)


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("modes", (), "modes must be"),
        ("modes", ("zero", "zero"), "each once"),
        ("protocol", "horn", "Did you mean 'horn2021'"),
        ("parts", ("layer",), "Did you mean 'layers'"),
        ("output", "maps", r"output must be .*got 'maps'"),
        ("batch_size", 0, r"batch_size must be .*got 0"),
        ("budget_seconds", 0, r"budget_seconds must be .*got 0"),
        ("confidence", 1.0, r"confidence must be .*got 1.0"),
        ("num_resamples", 39, "num_resamples must be at least .* = 40.*got 39"),
        ("num_examples", -1, r"num_examples must be .*got -1"),
    ],
)
def test_invalid_settings_are_errors(
    argument: str, value: object, message: str, unchecked_annotations: None
):
    with pytest.raises(ValueError, match=message):
        AuditSettings(**{argument: value})  # pyright: ignore[reportArgumentType]


def test_shift_with_too_many_steps_is_an_error():
    with pytest.raises(ValueError, match="a finite number for each of the 2 axes"):
        AuditSettings(shifts=[(0, 1, 2)]).shifts_for((9, 9))
