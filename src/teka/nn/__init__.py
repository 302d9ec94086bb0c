"""Layers: attention between learned projections, relative kernels with learned parameters, and what goes with them."""

from teka.nn.absolute_position import AbsolutePosition
from teka.nn.attention import Attention
from teka.nn.attention_pool import AttentionPool
from teka.nn.explain import Explanation, explain
from teka.nn.gate import Gate
from teka.nn.invertible_downsampling import InvertibleDownsampling
from teka.nn.layer_warnings import CollapseWarning, LargeOutputWarning
from teka.nn.learned_features import LearnedFeatures
from teka.nn.prune_heads import prune_heads
from teka.nn.random_features import RandomFeatures, redraw_projections
from teka.nn.relative import (
    Clipped,
    ClippedFeatures,
    EmbeddedTable,
    Fourier,
    GeneralizedQuadratic,
    Quadratic,
    Rotary,
    Rotation,
    RotationJoint,
    Table,
)
from teka.nn.transformer_block import TransformerBlock
from teka.nn.value_convolution import ValueConvolution

__all__ = [
    "AbsolutePosition",
    "Attention",
    "AttentionPool",
    "Clipped",
    "ClippedFeatures",
    "CollapseWarning",
    "EmbeddedTable",
    "Explanation",
    "Fourier",
    "Gate",
    "GeneralizedQuadratic",
    "InvertibleDownsampling",
    "LargeOutputWarning",
    "LearnedFeatures",
    "Quadratic",
    "RandomFeatures",
    "Rotary",
    "Rotation",
    "RotationJoint",
    "Table",
    "TransformerBlock",
    "ValueConvolution",
    "explain",
    "prune_heads",
    "redraw_projections",
]
