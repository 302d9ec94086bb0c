"""Downsampling and upsampling layers that keep a model equivariant to shifts."""

from teka.nn.sampling.filters import OversampledGELU
from teka.nn.sampling.resample import SubpixelAlignment

__all__ = ["OversampledGELU", "SubpixelAlignment"]
