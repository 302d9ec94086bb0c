"""Attention as plain functions, with a choice of similarity and of position-dependent weights.

A content kernel computes the similarity of a query and a key, such as exp(qᵀk) in softmax
attention. A relative kernel computes a weight from the offset between their positions. The
attention weight is the product of both.
"""

from teka.functional.attention import attention
from teka.functional.backends.costs import BACKENDS
from teka.functional.backends.linear import DecodingState
from teka.functional.decode import decode
from teka.functional.kernels import KERNELS, default_num_features, draw_projection
from teka.functional.kernels.content_kernel import ContentKernel, FeatureKernel
from teka.functional.kernels.feature_kernels import Constant, Elu, Hedgehog, Softmax, Taylor2
from teka.functional.kernels.random_features import (
    HyperbolicFeatures,
    OptimalPositiveFeatures,
    PositiveFeatures,
    TrigonometricFeatures,
)
from teka.functional.kernels.random_projection import PROJECTIONS
from teka.functional.kernels.rectified import Focused, Relu, SquaredRelu
from teka.functional.kernels.similarity import ConcatenationKernel, DotProduct, Gaussian
from teka.functional.positions import length_mask
from teka.functional.relative import RELATIVES
from teka.functional.relative.biases import Alibi, Decay, Kerple, T5Bias
from teka.functional.relative.clipped import ClippedDistanceBias, ClippedDistanceFeatures
from teka.functional.relative.fourier import Fourier
from teka.functional.relative.quadratic import BiasTable, GeneralizedQuadraticBias, QuadraticBias
from teka.functional.relative.relative_kernel import RelativeKernel
from teka.functional.relative.rotary import Rotary
from teka.functional.relative.rotation import JointSinusoidalBias, SinusoidalBias
from teka.functional.relative.signed_offsets import Shaw, TransformerXLBias
from teka.functional.relative.window import WindowBias

__all__ = [
    "BACKENDS",
    "KERNELS",
    "PROJECTIONS",
    "RELATIVES",
    "Alibi",
    "BiasTable",
    "ClippedDistanceBias",
    "ClippedDistanceFeatures",
    "ConcatenationKernel",
    "Constant",
    "ContentKernel",
    "Decay",
    "DecodingState",
    "DotProduct",
    "Elu",
    "FeatureKernel",
    "Focused",
    "Fourier",
    "Gaussian",
    "GeneralizedQuadraticBias",
    "Hedgehog",
    "HyperbolicFeatures",
    "JointSinusoidalBias",
    "Kerple",
    "OptimalPositiveFeatures",
    "PositiveFeatures",
    "QuadraticBias",
    "RelativeKernel",
    "Relu",
    "Rotary",
    "Shaw",
    "SinusoidalBias",
    "Softmax",
    "SquaredRelu",
    "T5Bias",
    "Taylor2",
    "TransformerXLBias",
    "TrigonometricFeatures",
    "WindowBias",
    "attention",
    "decode",
    "default_num_features",
    "draw_projection",
    "length_mask",
]
