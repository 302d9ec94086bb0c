"""Downsampling and upsampling layers that preserve the shift equivariance of a model."""

from teka.nn.sampling.filters import OversampledGELU
from teka.nn.sampling.polyphase import (
    PolyphaseDownsample,
    PolyphasePatchEmbedding,
    PolyphaseUpsample,
)
from teka.nn.sampling.resample import AttentionDownsample, AttentionUpsample, SubpixelAlignment

__all__ = [
    "AttentionDownsample",
    "AttentionUpsample",
    "OversampledGELU",
    "PolyphaseDownsample",
    "PolyphasePatchEmbedding",
    "PolyphaseUpsample",
    "SubpixelAlignment",
]
