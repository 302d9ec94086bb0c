"""Downsampling and upsampling layers that preserve the shift equivariance of a model."""

from teka.nn.sampling.filters import OversampledGELU
from teka.nn.sampling.resample import SubpixelAlignment

__all__ = ["OversampledGELU", "SubpixelAlignment"]
