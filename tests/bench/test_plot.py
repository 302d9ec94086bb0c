import sys
from typing import Any

import numpy as np
import pytest

from teka.bench import LAYERS, draw_bench
from teka.bench.plot import line_style


def test_each_layer_is_a_line_in_both_panels_up_to_its_last_size(result: dict[str, Any]):
    times, ratios = draw_bench(result).axes
    assert [np.asarray(line.get_xdata()).tolist() for line in ratios.get_lines()] == [[256, 1024], [256, 1024], [256]]
    assert np.asarray(ratios.get_lines()[1].get_ydata()).tolist() == [3.5, 7.25]
    assert np.asarray(times.get_lines()[1].get_ydata()).tolist() == pytest.approx([89.6, 742.4])
    assert {panel.get_yscale() for panel in (times, ratios)} == {"log"}


def test_each_line_is_labelled_with_its_name_and_last_ratio(result: dict[str, Any]):
    labels = [text.get_text() for text in draw_bench(result).axes[1].texts]
    assert labels == ["1.0×  four_gemms", "7.2×  squared_relu × rotation (toeplitz)", "4.0×  softmax (dense)"]


def test_no_two_layers_look_alike():
    styles = [line_style(layer.name, layer.backend) for layer in LAYERS]
    assert len(set(styles)) == len(LAYERS)


def test_drawing_leaves_pyplot_alone(result: dict[str, Any]):
    loaded = "matplotlib.pyplot" in sys.modules
    draw_bench(result)
    assert ("matplotlib.pyplot" in sys.modules) is loaded
