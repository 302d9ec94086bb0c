"""How near random features come to softmax, against their number."""

from teka.experiments.approximate.approximate import approximate

__all__ = ["approximate"]
