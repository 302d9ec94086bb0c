"""Modification of trained models: new attention kernels, fixes for shifts, layer conversion.

- `replace_attention` gives a model new attention kernels, and `distill_attention` trains them.
- `fix` makes a model less sensitive to shifts of its input.
- `attention_from_convolution` and `convolution_from_attention` convert layers.
"""

from teka.convert.antialias import FixReport, fix
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
from teka.convert.replacement import ReplacementReport, replace_attention

__all__ = [
    "FixReport",
    "ReplacementReport",
    "attention_from_convolution",
    "conversion_error_bound",
    "convolution_from_attention",
    "distill_attention",
    "fix",
    "head_offsets",
    "low_rank_convolution",
    "precision_for_tolerance",
    "replace_attention",
]

mend = fix  # the former name, for one release
