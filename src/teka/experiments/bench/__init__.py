"""Time, memory and arithmetic of attention layers beside the four matrix products that a layer cannot do without."""

from teka.experiments.bench.bench import bench
from teka.experiments.bench.layers import LAYERS, Layer, layer_names
from teka.experiments.bench.plot import draw_bench
from teka.experiments.bench.table import bench_table

__all__ = ["LAYERS", "Layer", "bench", "bench_table", "draw_bench", "layer_names"]
