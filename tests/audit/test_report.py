import base64
import html
import json
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from teka.audit import Movement, compare_responses, measure_responses
from teka.audit.audit import audit
from teka.audit.caveats import Caveat
from teka.audit.page.pages import write_page
from teka.audit.report import (
    AuditReport,
    Example,
    Failure,
    PackedResponses,
    encode_image,
    find_worst_images,
    make_examples,
)
from teka.audit.settings import AuditSettings
from teka.codec import decode, encode

SHIFTS = [(0, 0), (0, 1), (0, 2)]


def sums(images: Tensor) -> Tensor:
    """Which side of an image is brighter."""
    return torch.stack([images[..., :3].sum((1, 2, 3)), images[..., 4:].sum((1, 2, 3))], dim=1)


def report(*modes: str) -> AuditReport:
    torch.manual_seed(0)
    settings = AuditSettings(shifts=[(0, 1), (0, 2)], modes=modes, parts=())
    images = torch.rand(30, 1, 5, 7)
    return audit(sums, images, sums(images).argmax(dim=1), settings=settings)


def test_a_gate_gets_the_lowest_number_of_all_modes():
    both = report("circular", "zero")
    each = [one.numbers["consistency"].value for one in both.metrics]
    assert len(set(each)) == 2
    assert both.number("consistency") == min(each)


def test_a_gate_gets_no_number_of_a_mode_that_failed_or_of_an_invalid_report():
    failed = replace(report("circular"), failures=(Failure("mode zero", "NaN"),))
    with pytest.raises(
        ValueError, match=r"the threshold needs every mode, but these failed: mode zero \(NaN\)"
    ):
        failed.number("consistency")
    invalid = replace(
        report("circular"), caveats=(Caveat("constant predictor", "invalidates", "0"),)
    )
    with pytest.raises(ValueError, match="invalid: constant predictor"):
        invalid.number("consistency")


def test_print_shows_the_verdict_and_a_page_is_written(tmp_path):
    found = report("circular")
    assert found.verdict[0] in str(found)
    assert all(caveat.message in str(found) for caveat in found.caveats)
    assert repr(found) == f"<AuditReport of {found.name}: {found.verdict[0]}>"
    page = write_page([found], tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert found.verdict[0] in html.unescape(page)


def test_a_number_that_was_not_measured_is_refused_with_those_that_were():
    with pytest.raises(
        ValueError, match=r"metric must be one that was measured: accuracy, .*got 'speed'"
    ):
        report("circular").number("speed")


def test_another_schema_is_refused(tmp_path):
    path = report("circular").write(tmp_path / "report.json")
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "schema": 0}))
    with pytest.raises(ValueError, match=r"report\.json: schema of the content must be 4.*got 0"):
        AuditReport.read(path)


def test_a_report_that_lacks_a_field_is_refused():
    content = report("circular").to_dict()
    for field in ("metrics", "name", "examples"):
        with pytest.raises(ValueError, match="the content is not the report of an audit"):
            AuditReport.from_dict({name: value for name, value in content.items() if name != field})


def test_the_responses_of_a_report_are_those_that_were_measured(tmp_path):
    torch.manual_seed(0)
    images, labels = torch.rand(30, 1, 5, 7), torch.arange(30) % 2
    settings = AuditSettings(shifts=[(0, 1), (0, 2)], modes=("zero",), parts=())
    (packed,) = AuditReport.read(
        audit(sums, images, labels, settings=settings).write(tmp_path / "a.json")
    ).responses
    found = packed.unpack()
    expected = measure_responses(
        sums, images, settings.shifts_for((5, 7)), Movement("zero"), labels=labels
    )
    for name in ("evaluated", "predictions", "labels", "error_squared", "norm_squared"):
        torch.testing.assert_close(
            getattr(found, name), getattr(expected, name), rtol=1e-6, atol=1e-12
        )
    other = measure_responses(
        lambda batch: -sums(batch), images, found.shifts, Movement("zero"), labels=labels
    )
    kept, measured = (
        compare_responses(one, other).numbers["worst_shift_accuracy"] for one in (found, expected)
    )
    assert kept == measured
    huge = PackedResponses.pack(
        replace(expected, norm_squared=expected.norm_squared * 1e60)
    ).unpack()
    torch.testing.assert_close(huge.norm_squared, expected.norm_squared * 1e60, rtol=0, atol=0)
    with pytest.raises(ValueError, match="responses of the report are damaged"):
        replace(packed, tables=packed.tables[:40]).unpack()


def test_a_failure_keeps_where_it_was_raised():
    def picky(images: Tensor) -> Tensor:
        if images.shape[-1] < 7:
            raise RuntimeError("too narrow")
        return sums(images)

    settings = AuditSettings(shifts=[(0, 1)], modes=("zero", "crop"), parts=())
    (failure,) = audit(picky, torch.rand(30, 1, 5, 7), settings=settings).failures
    assert "in picky" in failure.traceback
    assert "too narrow" in failure.message


def test_another_file_is_refused_by_name(tmp_path):
    (tmp_path / "other.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"other\.json"):
        AuditReport.read(tmp_path / "other.json")


def left_or_right(images: Tensor) -> Tensor:
    return torch.stack([images[..., :4].sum((1, 2, 3)), images[..., 4:].sum((1, 2, 3))], dim=1)


def dots(*columns: int) -> Tensor:
    images = torch.zeros(len(columns), 1, 5, 8)
    for image, column in zip(images, columns, strict=True):
        image[0, 2, column] = 1.0
    return images


def test_images_that_change_at_most_shifts_come_first_and_those_with_something_to_lose_before():
    # The dot at 3 leaves the left half at both shifts, the one at 2 at one of them, the one at 0 never.
    images = dots(0, 2, 3, 3)
    labels = torch.tensor([0, 0, 1, 0])
    responses = measure_responses(
        left_or_right, images, SHIFTS, Movement("circular"), labels=labels
    )
    assert find_worst_images(responses, 4) == (3, 1, 2, 0)
    assert find_worst_images(responses, 2) == (3, 1)


def test_an_example_has_the_answer_and_its_probability_at_every_shift():
    images = dots(2)
    responses = measure_responses(
        left_or_right, images, SHIFTS, Movement("circular"), output="logits"
    )
    (example,) = make_examples(left_or_right, images, responses, [0], AuditSettings(batch_size=2))
    share = pytest.approx(float(torch.tensor([1.0, 0.0]).softmax(0)[0]), abs=1e-4)
    assert example.shifts == tuple(SHIFTS)
    assert example.predictions == (0, 0, 1)
    assert list(example.probabilities) == [share] * 3
    assert example.label is None
    assert decode(Example, encode(example)) == example


def test_levels_are_rows_of_pixels_of_channels_spread_over_the_unit_range_and_else_grey():
    colour = torch.tensor([[[0.0, 1.0, 0.5]], [[0.2, 0.4, 0.6]], [[1.0, 0.0, 0.0]]])
    for image, levels in (
        (colour, [0, 51, 255, 255, 102, 0, 128, 153, 0]),
        (torch.tensor([[[-2.0, 0.0, 2.0]]]), [0, 128, 255]),
        (torch.tensor([[[0.0]], [[1.0]]]), [128]),
    ):
        assert list(base64.b64decode(encode_image(image))) == levels


def test_maps_have_no_examples():
    images = dots(2)
    responses = measure_responses(lambda batch: batch, images, SHIFTS, Movement("circular"))
    assert not list(make_examples(lambda batch: batch, images, responses, [0], AuditSettings()))
