"""Layers: attention between learned projections, relative kernels with learned parameters, and what goes with them."""

from teka.nn.absolute_position import AbsolutePosition
from teka.nn.attention import Attention, CollapseWarning
from teka.nn.attention_pool import AttentionPool
from teka.nn.random_features import RandomFeatures, redraw_projections
from teka.nn.relative import Clipped, ClippedFeatures, Rotation, RotationJoint
from teka.nn.transformer_block import TransformerBlock

__all__ = [
    "AbsolutePosition",
    "Attention",
    "AttentionPool",
    "Clipped",
    "ClippedFeatures",
    "CollapseWarning",
    "RandomFeatures",
    "Rotation",
    "RotationJoint",
    "TransformerBlock",
    "redraw_projections",
]
