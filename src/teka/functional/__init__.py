"""Attention as functions of tensors: content kernels, relative kernels and the backends that compute them."""

from teka.functional.attention import attention
from teka.functional.decode import DecodingState, decode
from teka.functional.kernel import (
    Constant,
    Elu,
    FeatureKernel,
    Focused,
    Hedgehog,
    Hyperbolic,
    Kernel,
    Optimal,
    Positive,
    Relu,
    Softmax,
    SquaredRelu,
    Taylor2,
    Trigonometric,
    default_num_features,
)
from teka.functional.placement import length_mask
from teka.functional.projection import draw_projection
from teka.functional.relative import (
    Clipped,
    ClippedFeatures,
    Fourier,
    GeneralizedQuadratic,
    Quadratic,
    Relative,
    Rotary,
    Rotation,
    RotationJoint,
    Table,
)

__all__ = [
    "Clipped",
    "ClippedFeatures",
    "Constant",
    "DecodingState",
    "Elu",
    "FeatureKernel",
    "Focused",
    "Fourier",
    "GeneralizedQuadratic",
    "Hedgehog",
    "Hyperbolic",
    "Kernel",
    "Optimal",
    "Positive",
    "Quadratic",
    "Relative",
    "Relu",
    "Rotary",
    "Rotation",
    "RotationJoint",
    "Softmax",
    "SquaredRelu",
    "Table",
    "Taylor2",
    "Trigonometric",
    "attention",
    "decode",
    "default_num_features",
    "draw_projection",
    "length_mask",
]
