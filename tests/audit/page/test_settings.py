from tests.audit.page.audit_reports import make_report

from teka.audit.page.settings import settings_groups


def pairs(**settings):
    return dict(dict(settings_groups(make_report(settings=settings)))["Settings"])


def test_names_are_written_for_people():
    assert pairs(num_resamples=1000, weights_sha256="ab") == {"Number of resamples": "1000", "Weights SHA-256": "ab"}


def test_what_is_not_known_is_left_out_but_zero_and_no_are_not():
    assert pairs(device=None, note="", seed=0, labelled=False) == {"Seed": "0", "Labelled": "no"}


def test_long_lists_are_shortened():
    shifts = [[down, right] for down in range(-8, 9) for right in range(-8, 9)]
    assert pairs(shifts=shifts) == {"Shifts": "289, from (−8, −8) to (8, 8)"}
    assert pairs(names=list("abcdefghijklmnop")) == {"Names": "a, b, c, d, e, f, g, h, i, j, k, l, … (16 in all)"}
    assert pairs(shifts=[[0, 1], [0, 2]], modes=[]) == {"Shifts": "(0, 1), (0, 2)", "Modes": "none"}


def test_a_group_without_anything_is_left_out():
    assert [name for name, _ in settings_groups(make_report(model={}))] == ["Data", "Settings", "Made with"]
