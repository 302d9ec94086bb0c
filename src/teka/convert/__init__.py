"""Models made to attend otherwise or to move with their input; convolutions as attention and back.

The last is Theorem 1 of Cordonnier et al. 2020.
Sizes that do not fit, unknown names and numbers out of their range are a ValueError that names the argument.
"""

from teka.convert.conversion import (
    attention_from_convolution,
    convolution_from_attention,
    head_offsets,
)
from teka.convert.convolutions import (
    conversion_error_bound,
    low_rank_convolution,
    precision_for_tolerance,
)
from teka.convert.distillation import distill_attention
from teka.convert.mending import Mending, mend
from teka.convert.replacement import ReplacementReport, replace_attention

__all__ = [
    "Mending",
    "ReplacementReport",
    "attention_from_convolution",
    "conversion_error_bound",
    "convolution_from_attention",
    "distill_attention",
    "head_offsets",
    "low_rank_convolution",
    "mend",
    "precision_for_tolerance",
    "replace_attention",
]
