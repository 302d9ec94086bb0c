import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from teka.audit import Movement, compare_responses, measure_responses
from teka.audit.audit import audit
from teka.audit.report import AuditReport, PackedResponses
from teka.audit.settings import AuditSettings


def sums(images: Tensor) -> Tensor:
    return torch.stack([images[..., :2].sum((1, 2, 3)), images.sum((1, 2, 3))], dim=1)


def report(*modes: str) -> AuditReport:
    torch.manual_seed(0)
    settings = AuditSettings(shifts=[(0, 1), (0, 2)], modes=modes, parts=())
    return audit(sums, torch.rand(30, 1, 5, 7), torch.arange(30) % 2, settings=settings)


def test_a_gate_gets_the_lowest_number_of_all_modes():
    both = report("circular", "zero")
    each = [one.numbers["accuracy"].value for one in both.metrics]
    assert both.number("accuracy") == min(each)


def test_a_number_that_was_not_measured_is_refused_with_those_that_were():
    with pytest.raises(ValueError, match="metric is 'speed', expected one that was measured: accuracy, "):
        report("circular").number("speed")


def test_another_schema_is_refused(tmp_path):
    path = report("circular").write(tmp_path / "report.json")
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "schema": 0}))
    with pytest.raises(ValueError, match=r"report\.json: schema is 0, expected one of 1, 2"):
        AuditReport.read(path)


@pytest.mark.parametrize("field", ["metrics", "name", "examples"])
def test_a_report_that_lacks_a_field_is_refused(tmp_path, field: str):
    path = report("circular").write(tmp_path / "report.json")
    content = json.loads(path.read_text())
    del content[field]
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="this is no audit's report"):
        AuditReport.read(path)


def test_a_report_of_the_first_schema_is_read():
    found = AuditReport.read(Path(__file__).parent / "report_schema_1.json")
    assert found.name == "tiny"
    assert [one.severity for one in found.caveats] == ["note", "limits", "invalidates", "invalidates"]
    assert found.failures[0].part == "mode lossless"
    assert found.failures[0].traceback == ""
    assert found.responses == ()
    assert found.layers is not None
    assert found.layers.breaks["aliasing"].name == "0"
    assert [one.axis for one in found.lie_derivative] == [0, 1]
    assert found.presets[0].name == "chaman2021"
    assert AuditReport.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_the_responses_of_a_report_are_those_that_were_measured(tmp_path):
    torch.manual_seed(0)
    images, labels = torch.rand(30, 1, 5, 7), torch.arange(30) % 2
    settings = AuditSettings(shifts=[(0, 1), (0, 2)], modes=("zero",), parts=())
    (packed,) = AuditReport.read(audit(sums, images, labels, settings=settings).write(tmp_path / "a.json")).responses
    found = packed.unpack()
    expected = measure_responses(sums, images, settings.shifts_for((5, 7)), Movement("zero"), labels=labels)
    for name in ("evaluated", "predictions", "labels", "error_squared", "norm_squared", "divergence"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-6, atol=1e-12)
    other = measure_responses(lambda batch: -sums(batch), images, found.shifts, Movement("zero"), labels=labels)
    kept, measured = (compare_responses(one, other).numbers["worst_shift_accuracy"] for one in (found, expected))
    assert kept == measured
    huge = PackedResponses.pack(replace(expected, norm_squared=expected.norm_squared * 1e60)).unpack()
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
