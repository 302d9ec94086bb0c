"""Attention as functions of tensors: content kernels, relative kernels and the backends that compute them."""

from teka.functional.attention import attention
from teka.functional.backend import BACKENDS
from teka.functional.backend.linear import DecodingState
from teka.functional.decode import decode
from teka.functional.kernel import (
    KERNELS,
    Constant,
    Elu,
    Focused,
    Hedgehog,
    Hyperbolic,
    Optimal,
    Positive,
    Relu,
    Softmax,
    SquaredRelu,
    Taylor2,
    Trigonometric,
    draw_projection,
)
from teka.functional.kernel.base import FeatureKernel, Kernel
from teka.functional.kernel.random import PROJECTIONS, default_num_features
from teka.functional.positions import length_mask
from teka.functional.relative import (
    RELATIVES,
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
    "BACKENDS",
    "KERNELS",
    "PROJECTIONS",
    "RELATIVES",
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
