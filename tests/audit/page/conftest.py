import html

import pytest

from teka.errors import escape_unprintable
from teka.reporting import plots


@pytest.fixture(autouse=True)
def figures(monkeypatch):
    """Collect the figures of a test instead of converting them to SVG, which is slow.

    tests/reporting/test_plots.py tests the conversion.
    """
    drawn = []

    def collect(figure, description):
        drawn.append(figure)
        return f'<svg class="chart" role="img" aria-label="{html.escape(escape_unprintable(description))}"></svg>'

    monkeypatch.setattr(plots, "to_svg", collect)
    return drawn
