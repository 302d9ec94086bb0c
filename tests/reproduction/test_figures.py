import sys

from reproduction.figures import to_png
from teka.reporting.plots import make_axes


def test_a_figure_becomes_a_png_file_without_the_global_state_of_pyplot(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    assert to_png(make_axes(380, 240)[0]).startswith(b"\x89PNG")
