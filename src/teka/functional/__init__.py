"""Attention functions, and the two factors of attention weights: content and relative kernels.

A content kernel is a similarity of query and key, such as softmax. A relative kernel is a weight
that depends on the offset between their positions.
"""

from teka.functional.attention import attention
from teka.functional.backends.costs import BACKENDS
from teka.functional.backends.linear import DecodingState
from teka.functional.decode import decode
from teka.functional.kernels import KERNELS, default_num_features, draw_projection
from teka.functional.kernels.base import FeatureKernel, Kernel
from teka.functional.kernels.features import Constant, Elu, Hedgehog, Softmax, Taylor2
from teka.functional.kernels.projection import PROJECTIONS
from teka.functional.kernels.random import Hyperbolic, Optimal, Positive, Trigonometric
from teka.functional.kernels.rectified import Focused, Relu, SquaredRelu
from teka.functional.kernels.similarity import Concatenation, DotProduct, Gaussian
from teka.functional.positions import length_mask
from teka.functional.relative import RELATIVES
from teka.functional.relative.base import Relative
from teka.functional.relative.biases import T5, Alibi, Decay, Kerple
from teka.functional.relative.clipped import Clipped, ClippedFeatures
from teka.functional.relative.fourier import Fourier
from teka.functional.relative.quadratic import GeneralizedQuadratic, Quadratic, Table
from teka.functional.relative.rotary import Rotary
from teka.functional.relative.rotation import Rotation, RotationJoint
from teka.functional.relative.signed import Shaw, TransformerXL
from teka.functional.relative.window import Window

__all__ = [
    "BACKENDS",
    "KERNELS",
    "PROJECTIONS",
    "RELATIVES",
    "T5",
    "Alibi",
    "Clipped",
    "ClippedFeatures",
    "Concatenation",
    "Constant",
    "Decay",
    "DecodingState",
    "DotProduct",
    "Elu",
    "FeatureKernel",
    "Focused",
    "Fourier",
    "Gaussian",
    "GeneralizedQuadratic",
    "Hedgehog",
    "Hyperbolic",
    "Kernel",
    "Kerple",
    "Optimal",
    "Positive",
    "Quadratic",
    "Relative",
    "Relu",
    "Rotary",
    "Rotation",
    "RotationJoint",
    "Shaw",
    "Softmax",
    "SquaredRelu",
    "Table",
    "Taylor2",
    "TransformerXL",
    "Trigonometric",
    "Window",
    "attention",
    "decode",
    "default_num_features",
    "draw_projection",
    "length_mask",
]
