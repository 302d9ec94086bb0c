"""Convolutions as attention, and attention as convolutions: Theorem 1 of Cordonnier et al. 2020 as functions."""

from teka.convert.attention_from_convolution import attention_from_convolution
from teka.convert.convolution_from_attention import convolution_from_attention
from teka.convert.head_offset import HeadOffset, head_offsets
from teka.convert.low_rank import low_rank_convolution
from teka.convert.tolerance import conversion_error_bound, precision_for_tolerance, stray_weight
from teka.convert.zero_bordered import ZeroBordered

__all__ = [
    "HeadOffset",
    "ZeroBordered",
    "attention_from_convolution",
    "conversion_error_bound",
    "convolution_from_attention",
    "head_offsets",
    "low_rank_convolution",
    "precision_for_tolerance",
    "stray_weight",
]
