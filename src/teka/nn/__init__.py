"""Layers: attention between learned projections, relative kernels with learned parameters, and what goes with them.

Sizes that do not fit, unknown names and numbers out of their range are a ValueError that names the argument.
"""

from teka.nn.attention import Attention
from teka.nn.attention_heads import AttentionHeads
from teka.nn.diagnostics.warnings import CollapseWarning, LargeOutputWarning
from teka.nn.distance import T5, Alibi, Decay, Kerple, Shaw, TransformerXL, Window
from teka.nn.features import LearnedFeatures, RandomFeatures, redraw_projections
from teka.nn.multihead_attention import MultiheadAttention
from teka.nn.options import AttentionOptions
from teka.nn.polyphase import PolyphaseDownsample, PolyphasePatchEmbedding, PolyphaseUpsample
from teka.nn.prune_heads import prune_heads
from teka.nn.relative import (
    Clipped,
    ClippedFeatures,
    EmbeddedTable,
    GeneralizedQuadratic,
    Quadratic,
    Table,
)
from teka.nn.resample import AttentionDownsample, AttentionUpsample
from teka.nn.sequence_parallel import divide_tokens
from teka.nn.tokens import AbsolutePosition, AbsoluteTable, AttentionPool, SpaceToDepth
from teka.nn.transformer_block import TransformerBlock
from teka.nn.waves import Fourier, Rotary, Rotation, RotationJoint

__all__ = [
    "T5",
    "AbsolutePosition",
    "AbsoluteTable",
    "Alibi",
    "Attention",
    "AttentionDownsample",
    "AttentionHeads",
    "AttentionOptions",
    "AttentionPool",
    "AttentionUpsample",
    "Clipped",
    "ClippedFeatures",
    "CollapseWarning",
    "Decay",
    "EmbeddedTable",
    "Fourier",
    "GeneralizedQuadratic",
    "Kerple",
    "LargeOutputWarning",
    "LearnedFeatures",
    "MultiheadAttention",
    "PolyphaseDownsample",
    "PolyphasePatchEmbedding",
    "PolyphaseUpsample",
    "Quadratic",
    "RandomFeatures",
    "Rotary",
    "Rotation",
    "RotationJoint",
    "Shaw",
    "SpaceToDepth",
    "Table",
    "TransformerBlock",
    "TransformerXL",
    "Window",
    "divide_tokens",
    "prune_heads",
    "redraw_projections",
]
