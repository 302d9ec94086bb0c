import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from teka.audit import axis_shifts, translate
from teka.audit.measure import moved_images
from teka.audit.measure.moved_images import MovedImages
from teka.audit.movement import Movement

IMAGES = torch.zeros(5, 2, 9, 11, dtype=torch.float64)
IMAGES[:, :, 3:6, 3:8] = torch.rand(5, 2, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
SHIFTS = axis_shifts(3)
MOVEMENTS = (
    Movement("circular"),
    Movement("lossless"),
    Movement("zero", 0.5),
    Movement("canvas", (0.0, 0.0), (15, 17)),
    Movement("reflect"),
    Movement("crop", crop_size=(3, 5)),
    Movement("fourier"),
    Movement("bilinear"),
)


def by_hand(movement, image, shift):
    settings = {"background": movement.background, "canvas_size": movement.canvas_size, "crop_size": movement.crop_size}
    return translate(IMAGES[image : image + 1], shift, mode=movement.mode, **settings)[0]


@pytest.mark.parametrize("movement", MOVEMENTS, ids=lambda movement: movement.mode)
@pytest.mark.parametrize("resident", [True, False])
def test_a_batch_holds_what_translate_gives(movement, resident, monkeypatch):
    if not resident:
        monkeypatch.setattr(moved_images, "RESIDENT_BYTES", 4000)
    moved = MovedImages(IMAGES, SHIFTS, movement)
    entries = torch.tensor([0, 1, 2, 4, 5, 9, 13, 21, 22, 60])
    batch = moved.batch(moved.segments(entries))
    for row, entry in enumerate(entries.tolist()):
        torch.testing.assert_close(batch[row], by_hand(movement, entry % 5, moved.shifts[entry // 5]), rtol=0, atol=0)


@pytest.mark.parametrize("movement", MOVEMENTS, ids=lambda movement: movement.mode)
def test_a_batch_may_be_changed(movement):
    images = IMAGES.clone()
    moved = MovedImages(images, SHIFTS, movement)
    segments = moved.segments(torch.arange(5))
    first = moved.batch(segments)
    expected = first.clone()
    first.fill_(7.0)
    assert torch.equal(images, IMAGES)
    assert torch.equal(moved.batch(segments), expected)


@given(st.sets(st.integers(0, 5 * 13 - 1), min_size=1))
def test_segments_cover_their_entries(chosen):
    moved = MovedImages(IMAGES, SHIFTS, Movement("circular"))
    entries = torch.tensor(sorted(chosen))
    covered, rows = [], []
    for one in moved.segments(entries):
        covered += (one.rank * 5 + torch.arange(5)[one.images]).tolist()
        rows += range(len(entries))[one.rows]
    assert covered == entries.tolist()
    assert rows == list(range(len(entries)))


def test_the_first_entries_are_the_images_unmoved():
    moved = MovedImages(IMAGES, SHIFTS[::-1], Movement("zero"))
    assert len(moved) == 5 * 13
    assert torch.equal(moved.batch(moved.segments(torch.arange(5))), IMAGES)
    assert moved.given_shifts == SHIFTS[::-1]


def test_a_batch_is_named_by_its_shifts_and_images():
    moved = MovedImages(IMAGES, [(0, 0), (0, 2)], Movement("zero"))
    assert moved.where(moved.segments(torch.arange(1, 4))) == "at shift (0, 0), images 1 to 3"
    expected = "in a batch from shift (0, 0), images 3 to 4 on, to shift (0, 2), images 0 to 1"
    assert moved.where(moved.segments(torch.arange(3, 7))) == expected


@pytest.mark.parametrize(
    ("images", "shifts", "movement", "message"),
    [
        (IMAGES[:0], SHIFTS, Movement("zero"), r"images has shape \(0, 2, 9, 11\)"),
        (IMAGES[0, 0], SHIFTS, Movement("zero"), r"images has shape \(9, 11\)"),
        (IMAGES, [(0, 1)], Movement("zero"), "with the zero shift"),
        (IMAGES, [(0, 0), (0, 12)], Movement("zero"), r"shift is \(0, 12\)"),
        (IMAGES, [(0, 0), (4, 0)], Movement("lossless"), "5 of 5 images lose pixels"),
    ],
)
def test_what_cannot_be_moved_is_refused(images, shifts, movement, message, as_users_run_it):
    with pytest.raises(ValueError, match=message):
        MovedImages(images, shifts, movement)
