"""Kernels for linear attention whose features are powers of a ReLU with a positive minimum."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from teka.checks import POSITIVE_NUMBER, is_positive
from teka.errors import wrong_value
from teka.execution_mode import ExecutionMode, execution_mode
from teka.functional.kernels.content_kernel import FeatureKernel, mask_features
from teka.functional.shapes import (
    CausalFeatures,
    FeatureVectors,
    KeyFeatures,
    KeyMask,
    Keys,
    Queries,
    QueryFeatures,
    Vectors,
)

# Vectors are scaled by powers of 2 with this step in the exponent.
RANGE_BITS = 8.0
# Features of the zero vector. The product of two of them is a normal float32 number, so that keys
# which are all zero have equal weights. Among larger keys, a zero key has no visible weight.
LEAST_FEATURE = 1e-14


class SharedFeatureMapKernel(FeatureKernel):
    """Base class of kernels for linear attention that map queries and keys in the same way."""

    @abstractmethod
    def feature_map(self, vectors: Vectors, *, scale: float) -> FeatureVectors:
        """Map queries or keys x to features φ(x)."""

    def query_features(self, query: Queries, *, scale: float) -> QueryFeatures:
        return self.feature_map(query, scale=scale)

    def key_features(self, key: Keys, *, scale: float, key_mask: KeyMask = None) -> KeyFeatures:
        return mask_features(self.feature_map(key, scale=scale), key_mask)


def _overflow_safe_factors(vectors: Tensor, dims: tuple[int, ...]) -> Tensor | None:
    """Return factors by which to multiply vectors, so that powers of their entries do not overflow.

    The factors are powers of 2⁸. After multiplication, the largest absolute entry along `dims` is
    between 1/16 and 16. Return None if no vector needs a factor.
    """
    vectors = vectors.detach()
    largest, smallest = vectors.amax(dim=dims, keepdim=True), vectors.amin(dim=dims, keepdim=True)
    peak = torch.maximum(largest, -smallest)
    mode = execution_mode(peak)
    if mode is ExecutionMode.SHAPES_ONLY:
        return None
    if mode is ExecutionMode.EAGER and peak.is_cpu and peak.numel() > 0:
        low, high = torch.aminmax(peak)
        if float(low) >= 2 ** (-RANGE_BITS / 2) and float(high) <= 2 ** (RANGE_BITS / 2):
            return None
    # Coarse steps let vectors of similar size share one factor. Multiplication by powers of 2 is
    # exact.
    tiny = torch.finfo(vectors.dtype).tiny
    steps = torch.round(peak.clamp_min(tiny).log2() / RANGE_BITS).clamp(-15.0, 15.0)
    return torch.exp2(-RANGE_BITS * steps)


def _first_unmasked_key(key: Keys, key_mask: KeyMask) -> Float[Tensor, "batch heads first dim"]:
    if key_mask is None:
        return key[:, :, :1]
    first = key_mask.int().argmax(dim=-1)[:, None, None, None]
    return key.gather(2, first.expand(*key.shape[:2], 1, key.shape[-1]))


@dataclass(frozen=True)
class FlooredRelu(SharedFeatureMapKernel):
    """Base class of features that are powers of a ReLU with a small positive minimum.

        r(x) = max(x, ε ‖x‖/√d)

    Here x is a query or key of size d, ε is the small number `epsilon`, and the features are powers
    of r(x). Because of the minimum, a query without a positive entry still attends to all keys. The
    minimum is proportional to the length of x, so that multiplying x by a positive number
    multiplies r(x) by the same number. The features of the zero vector are 10⁻¹⁴.

    The length of a query and a common factor of all keys cancel in the normalization. To avoid
    overflow, vectors are therefore scaled before powers are taken, by factors without a gradient.
    In float32, keys may be 10⁹ times smaller than the largest key.

    Args:
        epsilon: ε > 0, relative to the root mean square of the entries of a vector.

    Raises:
        ValueError: If `epsilon` is not positive.
    """

    nonnegative = True
    degree: ClassVar[int] = 1

    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        if not is_positive(self.epsilon):
            raise wrong_value("epsilon", self.epsilon, POSITIVE_NUMBER)

    def num_features(self, dim: int) -> int:
        return dim

    @abstractmethod
    def features_from_rectified(self, rectified: Vectors) -> FeatureVectors:
        """Map rectified vectors r(x) to features φ(x)."""

    def feature_map(self, vectors: Vectors, *, scale: float) -> FeatureVectors:
        length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
        floor = length * (self.epsilon / math.sqrt(vectors.shape[-1]))
        floor = floor.clamp_min(self._least_floor(vectors))
        # This is torch.maximum(vectors, floor), whose gradient takes four times as long.
        return self.features_from_rectified(torch.relu(vectors - floor) + floor)

    def query_features(self, query: Queries, *, scale: float) -> QueryFeatures:
        factor = _overflow_safe_factors(query, (-1,))
        return self.feature_map(query if factor is None else query * factor, scale=scale)

    def key_features(self, key: Keys, *, scale: float, key_mask: KeyMask = None) -> KeyFeatures:
        factor = _overflow_safe_factors(mask_features(key, key_mask), (-2, -1))
        key = key if factor is None else key * factor
        return mask_features(self.feature_map(key, scale=scale), key_mask)

    def causal_key_features(
        self, key: Keys, *, scale: float, key_mask: KeyMask = None
    ) -> CausalFeatures:
        """Map keys to features for causal attention, scaled so that they do not overflow.

        The features of each key are divided by a positive number, whose logarithm is returned as
        well. If the first unmasked key is neither very large nor very small, no features are
        divided, and the logarithms are None. Only the first key decides, because later keys must
        not change earlier outputs. Without a division, the weights of keys that are much smaller
        than others round to 0.
        """
        log_scale = None
        if _overflow_safe_factors(_first_unmasked_key(key, key_mask), (-1,)) is not None:
            factor = _overflow_safe_factors(key, (-1,))
            if factor is not None:
                key = key * factor
                log_scale = -self.degree * factor[..., 0].log()
        return mask_features(self.feature_map(key, scale=scale), key_mask), log_scale

    def _least_floor(self, vectors: Vectors) -> float:
        """Return the minimum of the ReLU for vectors of length 0."""
        return LEAST_FEATURE ** (1 / self.degree)


@dataclass(frozen=True)
class SquaredRelu(FlooredRelu):
    """The default kernel for linear attention, an inner product of squared ReLU features.

        φ(x) = max(x, ε ‖x‖/√d)²

    Here x is a query or key of size d. The small number ε sets a positive minimum, so that no
    feature is 0. Multiplying a query, or all keys, by a positive number does not change the
    attention weights.

    Source: So et al. 2021 (Primer) for the activation. Its use as a feature map is from this
    library.

    >>> import torch
    >>> from teka.functional import SquaredRelu, attention
    >>> query, key, value = torch.randn(3, 1, 2, 6, 4)
    >>> output = attention(query, key, value, kernel=SquaredRelu())
    >>> scaled_output = attention(9 * query, key / 7, value, kernel=SquaredRelu())
    >>> torch.allclose(scaled_output, output, atol=1e-5)
    True

    Args:
        epsilon: ε > 0, relative to the root mean square of the entries of a vector.

    Raises:
        ValueError: If `epsilon` is not positive.
    """

    name = "squared_relu"
    degree = 2

    epsilon: float = 1e-3

    def features_from_rectified(self, rectified: Vectors) -> FeatureVectors:
        return rectified.square()


@dataclass(frozen=True)
class Relu(FlooredRelu):
    """A kernel for linear attention, the inner product of ReLU features of query and key.

        φ(x) = max(x, ε ‖x‖/√d)

    Here x is a query or key of size d. The small number ε sets a positive minimum, so that no
    feature is 0.

    Source: Choromanski et al. 2021 (Performer-ReLU). The relative floor is from this library.

    >>> import torch
    >>> from teka.functional import Relu
    >>> Relu(epsilon=0.01).feature_map(torch.tensor([3.0, -4.0]), scale=1.0).round(decimals=4)
    tensor([3.0000, 0.0354])

    Args:
        epsilon: ε > 0, relative to the root mean square of the entries of a vector.
    """

    name = "relu"

    def features_from_rectified(self, rectified: Vectors) -> FeatureVectors:
        return rectified


@dataclass(frozen=True)
class Focused(FlooredRelu):
    """The kernel of focused linear attention, which gives more weight to similar keys.

    The features of a query or key x of size d are computed in two steps:

    1. A ReLU with a small positive minimum gives the vector r = max(x, ε ‖x‖/√d). The number ε is
       the argument `epsilon`.
    2. The entries of r are cubed, and the result is rescaled to the length of r. The features are
       φ(x) = ‖r‖ · r³/‖r³‖.

    The attention weight is the inner product of the features of query and key. Cubing turns a
    vector towards its largest entries, so that similar pairs gain weight and dissimilar pairs lose
    weight.

    Source: Han et al. 2023 (FLatten Transformer), with p = 3. The relative floor is from this
    library.

    >>> import torch
    >>> from teka.functional import Focused
    >>> vector = torch.tensor([2.0, 1.0])
    >>> features = Focused().feature_map(vector, scale=1.0)
    >>> features.round(decimals=3)
    tensor([2.2190, 0.2770])
    >>> torch.allclose(features.norm(), vector.norm())
    True

    Args:
        epsilon: ε > 0, relative to the root mean square of the entries of a vector.
    """

    name = "focused"

    def query_features(self, query: Queries, *, scale: float) -> QueryFeatures:
        # A vector of ones attends like the zero vector, but its features are not tiny.
        is_zero = (query == 0).all(dim=-1, keepdim=True)
        return super().query_features(query.masked_fill(is_zero, 1.0), scale=scale)

    def _least_floor(self, vectors: Vectors) -> float:
        # The features of a key are at least (ε/√d)³ times its length. A zero key must not have
        # larger features. The lower limit is the floor of the shortest vector whose squares are
        # normal numbers.
        share = self.epsilon / math.sqrt(vectors.shape[-1])
        shortest = 1.01 * math.sqrt(torch.finfo(vectors.dtype).tiny) * share
        return min(LEAST_FEATURE, max(1e-6 * share**3, shortest))

    def features_from_rectified(self, rectified: Vectors) -> FeatureVectors:
        # The ratio r/max(r) keeps the powers in range. ‖(r/max(r))³‖ is at least 1.
        peak = rectified.amax(dim=-1, keepdim=True).detach()
        ratio = rectified / peak
        length = ratio.square().sum(dim=-1, keepdim=True).sqrt()
        cube_length = ratio.pow(6).sum(dim=-1, keepdim=True).sqrt()
        return ratio.pow(3) * (peak * length / cube_length)
