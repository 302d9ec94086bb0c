"""How near random features come to softmax, against their number."""

from reproduction.approximation.approximate import approximate

__all__ = ["approximate"]
