import pytest
import torch
from torch import nn

from teka.audit import AuditSettings, Movement, audit, measure_responses
from teka.audit.changes import CHANGES, compared_after, rotate, scale
from teka.audit.page.changes import change_sections
from teka.audit.page.pages import render_audit_page
from teka.audit.report import AuditReport

FLIP = Movement("flip")
IMAGES = torch.rand(3, 2, 9, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_a_rotation_by_quarters_is_a_turn_and_one_of_an_oblong_image_keeps_its_shape():
    for quarters in (1, 2, 3, -1):
        assert rotate(IMAGES, 90.0 * quarters, 0.0).allclose(
            IMAGES.rot90(quarters, (2, 3)), atol=1e-12
        )
    oblong = torch.zeros(1, 1, 5, 11)
    oblong[0, 0, 2, 7] = 1.0  # two to the right of the middle, and so two above it
    assert rotate(oblong, 90.0, 0.0)[0, 0, 0, 5] == pytest.approx(1.0)
    assert rotate(oblong + 3, 30.0, 3.0).min() >= 3.0


def test_scaling_by_a_percentage_moves_a_ramp_about_the_middle():
    ramp = torch.arange(-6.0, 7.0, dtype=torch.float64).expand(1, 1, 13, 13)
    inner = (slice(None), slice(None), slice(3, 10), slice(3, 10))
    assert scale(ramp, 25.0, 0.0)[inner].allclose(ramp[inner] / 1.25)
    assert scale(ramp + 9, -10.0, 9.0)[0, 0, 0, 0] == pytest.approx(9.0, abs=3)


@pytest.mark.parametrize("name", CHANGES)
def test_an_amount_of_zero_changes_nothing_and_what_is_exact_is_undone(name):
    movement = Movement(name)
    placed = movement.place(IMAGES)
    amounts = [(amount,) for amount in CHANGES[name].amounts]
    assert movement.check(placed, amounts) == tuple(amounts)
    assert movement.move(placed, (0,)).allclose(IMAGES, atol=1e-12)
    for (amount,) in amounts:
        changed, inverse = (
            movement.move(placed, (amount,)),
            amount if name == "flip" else CHANGES[name].undo(amount),
        )
        back = CHANGES[name].apply(changed, inverse, 0.0)
        if name in ("turn", "flip"):
            assert torch.equal(back, IMAGES)
        elif CHANGES[name].interpolates:
            assert Movement(name, there_and_back=True).move(placed, (amount,)).allclose(back)


def test_maps_are_compared_with_the_map_of_the_image_unchanged_changed_along():
    pointwise = nn.Conv2d(2, 4, 1, dtype=torch.float64).eval().requires_grad_(False)
    for name in ("turn", "flip", "rotation", "scale"):
        amounts = [(amount,) for amount in CHANGES[name].amounts]
        found = measure_responses(pointwise, IMAGES, amounts, Movement(name), output="dense")
        assert found.relative_error().max() < 1e-10, name
    # Where background comes in nothing is compared: no class is there that no pixel has.
    classes = torch.stack(
        [-torch.ones(3, 9, 9), IMAGES[:, 0].float(), 1 - IMAGES[:, 0].float()], dim=1
    )
    found, expected = compared_after(classes, classes, CHANGES["rotation"], 10)
    assert 0 not in torch.cat([found, expected]).argmax(dim=1)
    wide = nn.Conv2d(2, 4, 3, padding=1, dtype=torch.float64).eval().requires_grad_(False)
    assert (
        measure_responses(wide, IMAGES, [(0,), (1,)], Movement("turn"), output="dense")
        .relative_error()[1]
        .min()
        > 0.1
    )


def test_a_report_has_each_change_with_what_interpolation_alone_does(tmp_path):
    def brighter_half(batch):
        return torch.stack([batch[..., :4].sum((1, 2, 3)), batch[..., 5:].sum((1, 2, 3))], dim=1)

    settings = AuditSettings(
        shifts=[(0, 1)], parts=(), changes=tuple(CHANGES), num_examples=0, num_resamples=40
    )
    images = torch.rand(20, 1, 9, 9, generator=torch.Generator().manual_seed(0))
    report = audit(brighter_half, images, settings=settings)
    assert report.failures == ()
    by_name = {one.metrics.movement.mode: one for one in report.changes}
    assert list(by_name) == list(CHANGES)
    assert by_name["brightness"].metrics.numbers["consistency"].value == 1.0
    # Left and right exchanged, the other half is brighter; upside down the same is.
    assert by_name["flip"].metrics.curves["agreement"].values == (1.0, 0.0, 1.0, 0.0)
    assert [name for name, one in by_name.items() if one.there_and_back] == ["rotation", "scale"]
    assert AuditReport.read(report.write(tmp_path / "report.json")) == report
    assert sum("prediction stays the same in" in sentence for sentence in report.verdict) == len(
        CHANGES
    )
    sections = {section["name"]: section for section in change_sections([report])}
    assert [bool(sections[name]["figures"]) for name in CHANGES] == [False, False, True, True, True]
    assert "left–right" in render_audit_page([report])


@pytest.mark.parametrize(
    ("movement", "amounts", "message"),
    [
        (Movement("flip"), [(0,), (4,)], "shifts must be one of.*got 4"),
        (Movement("scale"), [(0,), (-100,)], r"shifts must be .*got -100"),
        (Movement("turn"), [(0,), (1,)], "as high as wide"),
    ],
)
def test_amounts_that_a_change_does_not_have_are_refused(movement, amounts, message):
    with pytest.raises(ValueError, match=message):
        movement.check(torch.zeros(1, 1, 4, 5), amounts)


def test_what_does_not_interpolate_is_not_done_there_and_back_and_boxes_are_shifted_alone():
    with pytest.raises(ValueError, match=r"there_and_back must be .*got True"):
        Movement("flip", there_and_back=True)
    with pytest.raises(ValueError, match="one that shifts images"):
        measure_responses(
            lambda batch: batch.new_zeros(len(batch), 2, 6), IMAGES, [0, 1], FLIP, output="boxes"
        )
    with pytest.raises(ValueError, match=r"modes must be .*got 'flip'"):
        AuditSettings(modes=("flip",))
