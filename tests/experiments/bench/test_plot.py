import itertools
import sys
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from teka.experiments.bench import LAYERS, draw_bench
from teka.experiments.bench.plot import line_style


def test_each_layer_is_a_line_in_both_panels_up_to_its_last_size(result: dict[str, Any]):
    times, memory = draw_bench(result).axes
    for panel in (times, memory):
        tokens = [np.asarray(line.get_xdata()).tolist() for line in panel.get_lines()]
        assert tokens == [[256, 1024], [256, 1024], [256]]
        assert panel.get_yscale() == panel.get_xscale() == "log"
    assert np.asarray(times.get_lines()[1].get_ydata()).tolist() == pytest.approx([89.6, 742.4])
    assert np.asarray(memory.get_lines()[1].get_ydata()).tolist() == pytest.approx([12.3, 12.3])


def test_each_line_is_named_and_those_that_end_early_are_listed_apart(result: dict[str, Any]):
    for panel in draw_bench(result).axes:
        names = [text.get_text() for text in panel.texts if text.get_text()]
        expected = ["four_gemms", "squared_relu × rotation (toeplitz)", "softmax (dense)", "not timed at 1,024 tokens:"]
        assert names == expected


def test_no_two_names_overlap_with_all_layers_and_none_leaves_the_picture(result: dict[str, Any]):
    template = result["rows"][0]
    result["rows"] = [
        {**template, "layer": layer.name, "backend": layer.backend, "tokens": tokens, "seconds": tokens / 1e5}
        for index, layer in enumerate(LAYERS)
        for tokens in (256, 1024, 4096)[: 3 - index % 2]
    ]
    figure = draw_bench(result)
    renderer = FigureCanvasAgg(figure).get_renderer()
    for panel in figure.axes:
        boxes = [text.get_window_extent(renderer) for text in panel.texts if text.get_text()]
        boxes.sort(key=lambda box: -box.y0)
        assert len(boxes) == len(LAYERS) + 1
        assert all(upper.y0 >= lower.y1 for upper, lower in itertools.pairwise(boxes))
        assert all(box.x1 < figure.bbox.x1 for box in boxes)


def test_no_two_layers_look_alike():
    styles = [line_style(layer.name, layer.backend) for layer in LAYERS]
    assert len(set(styles)) == len(LAYERS)


def test_drawing_leaves_pyplot_alone(result: dict[str, Any]):
    loaded = "matplotlib.pyplot" in sys.modules
    draw_bench(result)
    assert ("matplotlib.pyplot" in sys.modules) is loaded
