from tests.audit.page.audit_reports import make_metrics, make_report

from teka.audit.page.presets import preset_sections
from teka.audit.procedures import PresetResult
from teka.audit.statistics.estimate import Estimate


def preset(share):
    number = Estimate(share, share - 0.01, share + 0.01, 0.95, "wilson")
    moved = make_metrics(shifts=tuple((0, step) for step in range(-2, 3)))
    return PresetResult("horn2021", "Moved.", "The paper", {"images": 1854}, {"mean": number}, {"all classes": moved})


def test_models_stand_below_each_other_in_one_procedure():
    reports = [
        make_report("one", presets=(preset(0.9),)),
        make_report("none"),
        make_report("two", presets=(preset(0.5),)),
    ]
    (section,) = preset_sections(reports)
    assert section.rows == ((0, "mean", "90.0", "89.0–91.0"), (2, "mean", "50.0", "49.0–51.0"))
    assert section.counts == "images: 1,854"
    (curve,) = section.curves
    assert curve.name == "all classes: answered right (%)"
    assert len(curve.charts) == 1
    assert "one lies between" in curve.charts[0]
    assert "two lies between" in curve.charts[0]


def test_without_a_procedure_there_is_no_section():
    assert preset_sections([make_report()]) == []
