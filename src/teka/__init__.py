"""Attention that depends on where things are relative to each other, exactly, at linear cost, in any dimension."""

from teka import audit, convert, functional, models, nn
from teka.grid import Grid
from teka.nn import explain
from teka.nn.diagnosis import diagnose

__version__ = "0.1.0"

__all__ = ["Grid", "__version__", "audit", "convert", "diagnose", "explain", "functional", "models", "nn"]
