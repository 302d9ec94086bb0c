"""Attention maps of one token: a picture for each head and layer."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from teka.audit.page.require import require
from teka.experiments.study.report.plot import INK, make_figure
from teka.training.heads.centers import head_colour

if TYPE_CHECKING:
    import matplotlib.figure

CELL = 0.82
"""Inches of a map."""
SHADES = ("#ffffff", "#cfe3f2", "#7fb4da", "#0072B2", "#10304a")


def draw_attention_maps(maps: Sequence[NDArray[np.floating]], query: tuple[int, int]) -> "matplotlib.figure.Figure":
    """Draw the weights that a token gives to all tokens: a row for each layer, a column for each head.

    White is 0 and the darkest blue the largest weight of the map, which stands below it. The black square is the query.

    Source: Cordonnier et al. 2020, Figure 6.

    Args:
        maps: For each layer the weights, (heads, rows, columns).
        query: Row and column of the token, from 0.

    Returns:
        A figure that belongs to no window and no global state.

    Raises:
        ImportError: matplotlib is not installed.
    """
    require("matplotlib")
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Rectangle

    shades = LinearSegmentedColormap.from_list("weights", SHADES)
    most = max(len(layer) for layer in maps)
    _, rows, columns = maps[0].shape
    figure = make_figure(CELL * most + 0.5, (CELL * rows / columns + 0.2) * len(maps) + 0.3)
    panels = figure.subplots(len(maps), most, squeeze=False)
    for layer, (line, weights) in enumerate(zip(panels, maps, strict=True)):
        for head, panel in enumerate(line):
            if head >= len(weights):
                panel.set_axis_off()
                continue
            panel.imshow(weights[head], cmap=shades, vmin=0, vmax=weights[head].max(), interpolation="nearest")
            panel.add_patch(
                Rectangle((query[1] - 0.5, query[0] - 0.5), 1, 1, fill=False, edgecolor="black", linewidth=1.4)
            )
            panel.set_xticks([])
            panel.set_yticks([])
            panel.set_xlabel(f"{weights[head].max():.2f}", fontsize=7, color=INK, labelpad=1.5)
            for spine in panel.spines.values():
                spine.set_color("#c3c9d1")
            if layer == 0 or len(maps[layer - 1]) <= head:
                panel.set_title(str(head + 1), fontsize=8, color=head_colour(head), fontweight="bold", pad=3)
        line[0].set_ylabel(f"layer {layer + 1}", fontsize=8.5, color=INK)
    return figure
