"""Time, memory and arithmetic of attention layers beside the four matrix products that a layer cannot do without."""

from reproduction.bench.bench import bench

__all__ = ["bench"]
