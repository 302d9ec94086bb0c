import html

import pytest

from teka.errors import printable
from teka.reporting import plots


@pytest.fixture(autouse=True)
def figures(monkeypatch):
    """Collect the figures of a test instead of converting them to SVG, which is slow.

    tests/reporting/test_plots.py tests the conversion.
    """
    drawn = []

    def collect(figure, description):
        drawn.append(figure)
        return f'<svg class="chart" role="img" aria-label="{html.escape(printable(description))}"></svg>'

    monkeypatch.setattr(plots, "to_svg", collect)
    return drawn
