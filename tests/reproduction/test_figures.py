import sys
from pathlib import Path

from reproduction.figures import save_png
from teka.reporting.plots import make_axes


def test_a_figure_becomes_a_png_file_without_the_global_state_of_pyplot(
    monkeypatch, tmp_path: Path
):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    save_png(make_axes(380, 240)[0], tmp_path / "figure.png")
    content = (tmp_path / "figure.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert b"Matplotlib" not in content
