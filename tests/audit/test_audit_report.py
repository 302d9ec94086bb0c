import json

import pytest
import torch
from torch import Tensor

from teka.audit.audit import audit
from teka.audit.audit_report import AuditReport
from teka.audit.audit_settings import AuditSettings


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
    with pytest.raises(ValueError, match=r"report\.json: schema is 0, expected 1"):
        AuditReport.read(path)


@pytest.mark.parametrize("field", ["metrics", "name", "examples"])
def test_a_report_that_lacks_a_field_is_refused(tmp_path, field: str):
    path = report("circular").write(tmp_path / "report.json")
    content = json.loads(path.read_text())
    del content[field]
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="this is no audit's report"):
        AuditReport.read(path)


def test_another_file_is_refused_by_name(tmp_path):
    (tmp_path / "other.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"other\.json"):
        AuditReport.read(tmp_path / "other.json")
