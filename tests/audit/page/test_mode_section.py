from tests.audit.page.audit_reports import CROSS, make_metrics, make_report

from teka.audit.movement import Movement
from teka.audit.page.mode_section import mode_sections


def test_a_mode_has_its_curves_and_the_maps_of_every_model():
    (section,) = mode_sections([make_report("one"), make_report("two")])
    assert section.mode == "circular"
    assert [figure.name for figure in section.curves] == ["answered right (%)", "answered as when not moved (%)"]
    assert [figure.name for figure in section.more_curves] == ["cross-entropy (nats)", "relative error"]
    assert [figure.model for figure in section.maps] == [0, 0, 0, 1, 1, 1]
    assert len({figure.key for figure in section.maps}) == 6


def test_modes_come_in_the_order_of_the_reports():
    zero = make_metrics(Movement("zero", 0.5))
    sections = mode_sections([make_report(), make_report(metrics=(zero, make_metrics()))])
    assert [section.mode for section in sections] == ["circular", "zero"]
    assert sections[1].words == ("What leaves is lost, and background enters. Background: 0.5.",)
    assert {figure.model for figure in sections[1].maps} == {1}


def test_shifts_along_the_axes_alone_have_no_map():
    (section,) = mode_sections([make_report(metrics=(make_metrics(shifts=CROSS),), phases={})])
    assert section.maps == ()
    assert len(section.curves[0].charts) == 2


def test_outputs_without_answers_show_their_error_at_once():
    (section,) = mode_sections([make_report(metrics=(make_metrics(output="dense"),), phases={})])
    assert [figure.name for figure in section.curves] == ["relative error"]
    assert section.maps[0].name == "At every shift: relative error"


def test_words_name_the_worst_shift_and_the_multiples_of_the_stride():
    (section,) = mode_sections([make_report()])
    shifts, sensitivity, phase = section.maps
    assert shifts.words.startswith("Lowest: 49.5 % at dx ")
    assert "1 is as far as those to another image" in sensitivity.words
    assert phase.words == "Lowest: 45.0 % at phase (1, 1) (bold frame). At multiples of the stride: 95.0 %."
    (flat,) = mode_sections([make_report(metrics=(make_metrics(fall=0.0),), phases={}, sensitivity={})])
    assert flat.maps[0].words == "Everywhere 97.0 %."


def test_images_of_one_axis_have_neither():
    (section,) = mode_sections([make_report(metrics=(make_metrics(shifts=((0,), (1,))),), phases={}, sensitivity={})])
    assert (section.curves, section.maps) == ((), ())
