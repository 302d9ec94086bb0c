"""Attention layers with relative positions, transformer blocks, pooling and resampling layers."""

from teka.nn.attention import Attention
from teka.nn.attention_heads import AttentionHeads
from teka.nn.features import LearnedFeatures, RandomFeatures, redraw_projections
from teka.nn.multihead_attention import MultiheadAttention
from teka.nn.options import AttentionOptions
from teka.nn.pooling import AttentionPool, SpaceToDepth
from teka.nn.position_embedding import LearnedPositionEmbedding, SinusoidalPositionEmbedding
from teka.nn.prune_heads import prune_heads
from teka.nn.relative import EmbeddedBiasTable, LearnedRelativeKernel, RelativeModule
from teka.nn.sampling.polyphase import (
    PolyphaseDownsample,
    PolyphasePatchEmbedding,
    PolyphaseUpsample,
)
from teka.nn.sampling.resample import AttentionDownsample, AttentionUpsample
from teka.nn.sequence_parallel import shard_tokens
from teka.nn.transformer_block import TransformerBlock

__all__ = [
    "Attention",
    "AttentionDownsample",
    "AttentionHeads",
    "AttentionOptions",
    "AttentionPool",
    "AttentionUpsample",
    "EmbeddedBiasTable",
    "LearnedFeatures",
    "LearnedPositionEmbedding",
    "LearnedRelativeKernel",
    "MultiheadAttention",
    "PolyphaseDownsample",
    "PolyphasePatchEmbedding",
    "PolyphaseUpsample",
    "RandomFeatures",
    "RelativeModule",
    "SinusoidalPositionEmbedding",
    "SpaceToDepth",
    "TransformerBlock",
    "prune_heads",
    "redraw_projections",
    "shard_tokens",
]
