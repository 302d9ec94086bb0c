"""Attention as functions of tensors: content kernels, relative kernels and the backends that compute them."""

from teka.functional.attention import attention
from teka.functional.kernel import (
    Constant,
    FeatureKernel,
    Kernel,
    Positive,
    Softmax,
    SquaredRelu,
    Trigonometric,
    default_num_features,
)
from teka.functional.projection import draw_projection
from teka.functional.relative import Clipped, ClippedFeatures, Relative, Rotation, RotationJoint

__all__ = [
    "Clipped",
    "ClippedFeatures",
    "Constant",
    "FeatureKernel",
    "Kernel",
    "Positive",
    "Relative",
    "Rotation",
    "RotationJoint",
    "Softmax",
    "SquaredRelu",
    "Trigonometric",
    "attention",
    "default_num_features",
    "draw_projection",
]
