from teka.audit.movement import Movement
from teka.audit.page.charts import HeatMap
from teka.audit.page.modes import _color_limits, describe_movement, mode_sections
from tests.audit.page.audit_reports import CROSS, make_metrics, make_report


def test_mode_description_states_sizes_and_background_where_used():
    assert describe_movement(Movement("zero", (0.5, 0.25, 0.0))).endswith(
        "Background: 0.5, 0.25, 0."
    )
    assert describe_movement(Movement("canvas", canvas_size=40)).endswith("Canvas: 40 × 40 pixels.")
    assert describe_movement(Movement("crop", crop_size=(24, 28))).endswith(
        "Window: 24 × 28 pixels."
    )
    assert "Background" not in describe_movement(Movement("circular", 0.5))


def test_mode_section_has_curves_and_a_map_of_each_model():
    (section,) = mode_sections([make_report("one"), make_report("two")])
    assert section["mode"] == "circular"
    assert [figure["name"] for figure in section["curves"]] == [
        "accuracy (%)",
        "same prediction as unshifted (%)",
    ]
    assert [figure["name"] for figure in section["more_curves"]] == ["relative error"]
    assert [figure["model"] for figure in section["maps"]] == [0, 1]


def test_mode_sections_are_in_the_order_of_the_reports():
    zero = make_metrics(Movement("zero", 0.5))
    sections = mode_sections([make_report(), make_report(metrics=(zero, make_metrics()))])
    assert [section["mode"] for section in sections] == ["circular", "zero"]
    assert sections[1]["words"] == [
        "Pixels that leave are lost, and background enters. Background: 0.5."
    ]
    assert {figure["model"] for figure in sections[1]["maps"]} == {1}


def test_shifts_along_the_axes_only_have_no_map():
    (section,) = mode_sections([make_report(metrics=(make_metrics(shifts=CROSS),))])
    assert section["maps"] == []
    assert len(section["curves"][0]["charts"]) == 2


def test_dense_outputs_show_the_error_first():
    (section,) = mode_sections([make_report(metrics=(make_metrics(output="dense"),))])
    assert [figure["name"] for figure in section["curves"]] == ["relative error"]
    assert section["maps"][0]["name"] == "At each shift: relative error"


def test_map_names_the_worst_shift():
    (section,) = mode_sections([make_report()])
    (figure,) = section["maps"]
    assert figure["words"].startswith("Lowest: 49.5 % at dx ")
    (flat,) = mode_sections([make_report(metrics=(make_metrics(fall=0.0),))])
    assert flat["maps"][0]["words"] == "97.0 % at every shift."


def test_color_limits_span_all_models_and_exceed_rounding_errors():
    exact = HeatMap("error", {(0, 0): 0.0, (1, 1): 1e-7})
    broken = HeatMap("error", {(0, 0): 0.0, (1, 1): 2.0})
    assert _color_limits([exact, broken]) == (0.0, 2.0)
    assert _color_limits([exact]) == (0.0, 0.01)
    share = HeatMap("accuracy", {(0, 0): 0.97, (1, 1): 0.4})
    assert _color_limits([share]) == (1.0, 0.4)
