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
    ExampleImage,
    Failure,
    PackedResponses,
    create_examples,
    encode_image,
    find_least_consistent_images,
)
from teka.audit.settings import AuditSettings
from teka.codec import decode, encode

SHIFTS = [(0, 0), (0, 1), (0, 2)]


def side_logits(images: Tensor) -> Tensor:
    """Return logits of the brighter side of an image."""
    return torch.stack([images[..., :3].sum((1, 2, 3)), images[..., 4:].sum((1, 2, 3))], dim=1)


def make_report(*modes: str) -> AuditReport:
    torch.manual_seed(0)
    settings = AuditSettings(shifts=[(0, 1), (0, 2)], modes=modes, parts=())
    images = torch.rand(30, 1, 5, 7)
    return audit(side_logits, images, side_logits(images).argmax(dim=1), settings=settings)


def test_number_is_the_lowest_of_all_modes():
    both = make_report("circular", "zero")
    values = [metrics.numbers["consistency"].value for metrics in both.metrics]
    assert len(set(values)) == 2
    assert both.number("consistency") == min(values)


def test_number_with_a_failed_mode_or_invalid_results_is_an_error():
    failed = replace(make_report("circular"), failures=(Failure("mode zero", "NaN"),))
    with pytest.raises(
        ValueError, match=r"the threshold needs every mode, but these failed: mode zero \(NaN\)"
    ):
        failed.number("consistency")
    invalid = replace(
        make_report("circular"), caveats=(Caveat("constant predictor", "invalidates", "0"),)
    )
    with pytest.raises(ValueError, match="invalid: constant predictor"):
        invalid.number("consistency")


def test_text_and_page_of_a_report_show_the_verdict(tmp_path):
    audit_report = make_report("circular")
    assert audit_report.verdict[0] in str(audit_report)
    assert all(caveat.message in str(audit_report) for caveat in audit_report.caveats)
    assert repr(audit_report) == f"<AuditReport of {audit_report.name}: {audit_report.verdict[0]}>"
    page = write_page([audit_report], tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert audit_report.verdict[0] in html.unescape(page)


def test_unmeasured_metric_is_an_error_that_lists_the_measured():
    with pytest.raises(
        ValueError, match=r"metric must be one that was measured: accuracy, .*got 'speed'"
    ):
        make_report("circular").number("speed")


def test_report_of_another_schema_is_an_error(tmp_path):
    path = make_report("circular").write(tmp_path / "report.json")
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "schema": 0}))
    with pytest.raises(ValueError, match=r"report\.json: schema of the content must be 4.*got 0"):
        AuditReport.read(path)


def test_report_without_a_field_is_an_error():
    content = make_report("circular").to_dict()
    for field in ("metrics", "name", "examples"):
        with pytest.raises(ValueError, match="the content is not the report of an audit"):
            AuditReport.from_dict({name: value for name, value in content.items() if name != field})


def test_responses_of_a_report_equal_the_measured_responses(tmp_path):
    torch.manual_seed(0)
    images, labels = torch.rand(30, 1, 5, 7), torch.arange(30) % 2
    settings = AuditSettings(shifts=[(0, 1), (0, 2)], modes=("zero",), parts=())
    (packed,) = AuditReport.read(
        audit(side_logits, images, labels, settings=settings).write(tmp_path / "a.json")
    ).responses
    audit_report = packed.unpack()
    expected = measure_responses(
        side_logits, images, settings.shifts_for((5, 7)), Movement("zero"), labels=labels
    )
    for name in ("evaluated", "predictions", "labels", "error_squared", "norm_squared"):
        torch.testing.assert_close(
            getattr(audit_report, name), getattr(expected, name), rtol=1e-6, atol=1e-12
        )
    other = measure_responses(
        lambda batch: -side_logits(batch),
        images,
        audit_report.shifts,
        Movement("zero"),
        labels=labels,
    )
    saved, measured = (
        compare_responses(responses, other).numbers["worst_shift_accuracy"]
        for responses in (audit_report, expected)
    )
    assert saved == measured
    large = PackedResponses.pack(
        replace(expected, norm_squared=expected.norm_squared * 1e60)
    ).unpack()
    torch.testing.assert_close(large.norm_squared, expected.norm_squared * 1e60, rtol=0, atol=0)
    with pytest.raises(ValueError, match="responses of the report are damaged"):
        replace(packed, tables=packed.tables[:40]).unpack()


def test_failure_keeps_the_traceback():
    def width_checking_model(images: Tensor) -> Tensor:
        if images.shape[-1] < 7:
            raise RuntimeError("too narrow")
        return side_logits(images)

    settings = AuditSettings(shifts=[(0, 1)], modes=("zero", "crop"), parts=())
    (failure,) = audit(width_checking_model, torch.rand(30, 1, 5, 7), settings=settings).failures
    assert "in width_checking_model" in failure.traceback
    assert "too narrow" in failure.message


def test_file_without_a_report_is_an_error(tmp_path):
    (tmp_path / "other.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"other\.json"):
        AuditReport.read(tmp_path / "other.json")


def half_logits(images: Tensor) -> Tensor:
    return torch.stack([images[..., :4].sum((1, 2, 3)), images[..., 4:].sum((1, 2, 3))], dim=1)


def images_of_columns(*columns: int) -> Tensor:
    images = torch.zeros(len(columns), 1, 5, 8)
    for image, column in zip(images, columns, strict=True):
        image[0, 2, column] = 1.0
    return images


def test_find_worst_images_sorts_by_changed_predictions():
    # The pixel in column 3 leaves the left half at both shifts, column 2 at one shift, column 0 never.
    images = images_of_columns(0, 2, 3, 3)
    labels = torch.tensor([0, 0, 1, 0])
    responses = measure_responses(half_logits, images, SHIFTS, Movement("circular"), labels=labels)
    assert find_least_consistent_images(responses, 4) == (3, 1, 2, 0)
    assert find_least_consistent_images(responses, 2) == (3, 1)


def test_example_has_prediction_and_probability_at_every_shift():
    images = images_of_columns(2)
    responses = measure_responses(
        half_logits, images, SHIFTS, Movement("circular"), output="logits"
    )
    (example,) = create_examples(half_logits, images, responses, [0], AuditSettings(batch_size=2))
    share = pytest.approx(float(torch.tensor([1.0, 0.0]).softmax(0)[0]), abs=1e-4)
    assert example.shifts == tuple(SHIFTS)
    assert example.predictions == (0, 0, 1)
    assert list(example.probabilities) == [share] * 3
    assert example.label is None
    assert decode(ExampleImage, encode(example)) == example


def test_encode_image_scales_levels_to_the_unit_range():
    color = torch.tensor([[[0.0, 1.0, 0.5]], [[0.2, 0.4, 0.6]], [[1.0, 0.0, 0.0]]])
    for image, levels in (
        (color, [0, 51, 255, 255, 102, 0, 128, 153, 0]),
        (torch.tensor([[[-2.0, 0.0, 2.0]]]), [0, 128, 255]),
        (torch.tensor([[[0.0]], [[1.0]]]), [128]),
    ):
        assert list(base64.b64decode(encode_image(image))) == levels


def test_dense_outputs_have_no_examples():
    images = images_of_columns(2)
    responses = measure_responses(lambda batch: batch, images, SHIFTS, Movement("circular"))
    assert not list(create_examples(lambda batch: batch, images, responses, [0], AuditSettings()))
