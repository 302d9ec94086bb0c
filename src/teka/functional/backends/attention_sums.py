"""Inputs of linear attention, and the numerators and denominators of its outputs."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from teka._compat import ProcessGroup, replace
from teka.execution_mode import ExecutionMode, execution_mode
from teka.functional.shapes import (
    KeyFeatures,
    KeyMask,
    LogScale,
    Outputs,
    Queries,
    QueryFeatures,
    QueryIndices,
    RowFunction,
    Values,
)

# Log scale of a missing key: below every other log scale and finite, so that differences are not
# NaN.
LOWEST_LOG_SCALE = -1e30
# A row has underflowed if its mean relative weight is below this number, where the largest possible
# weight is 1.
UNDERFLOW = {torch.float32: 1e-25, torch.float64: 1e-290}


def append_ones(value: Values) -> Float[Tensor, "batch heads keys channels"]:
    """Append a channel of ones to the values, so that one sum gives numerator and denominator.

    The weighted sum of the values is the numerator of attention, and the weighted sum of ones is
    its denominator.
    """
    return torch.cat([value, value.new_ones(*value.shape[:-1], 1)], dim=-1)


@dataclass(frozen=True)
class AttentionFeatures:
    """Feature vectors of queries or keys in linear attention.

    The inner product of the features of a query and a key is their attention weight. The numerator
    and the denominator of an output may use different features.

    Args:
        numerator: Vectors whose inner products are the weights of the numerator.
        denominator: Pairs of a weight and vectors: the denominator is the weighted sum of their
            inner products. Empty if the denominator is the sum of the numerator's weights.
    """

    numerator: Tensor
    denominator: tuple[tuple[float, Tensor], ...] = ()

    @property
    def denominator_terms(self) -> tuple[tuple[float, Tensor], ...]:
        """Terms of the sum that is the denominator, each as a weight and feature vectors.

        By default, there is one term, with the features of the numerator.
        """
        return self.denominator or ((1.0, self.numerator),)

    def concatenate_denominator_features(self) -> Tensor:
        """Concatenate all feature vectors of the attention denominator into one long vector.

        The denominator of a query and a key is a weighted sum of inner products, Σ_t w_t a_tᵀb_t.
        Each feature vector is multiplied by √w_t, so that the inner product of the long vectors is
        this sum.
        """
        return torch.cat([math.sqrt(weight) * part for weight, part in self.denominator], dim=-1)


@dataclass(frozen=True)
class LinearAttentionInputs:
    """Inputs of linear attention: the features of queries and keys, and the values.

    Args:
        query: Queries, on which some relative kernels depend.
        query_features: φ(q).
        key_features: φ(k_j) exp(−s_j), 0 for keys that the mask drops.
        value: Values.
        log_scale: s_j, or None for 0.
        key_mask: True for keys that are kept, or None to keep all.
        scale: Factor of the inner products qᵀk.
        is_causal: True if queries attend to no later keys.
        group: Processes that the tokens are divided over, or None. All tensors hold the tokens of
            this process.
    """

    query: Queries
    query_features: QueryFeatures
    key_features: KeyFeatures
    value: Values
    log_scale: LogScale = None
    key_mask: KeyMask = None
    scale: float = 1.0
    is_causal: bool = False
    group: ProcessGroup | None = None

    def without_first_tokens(self, num_tokens: int) -> "LinearAttentionInputs":
        """Return the inputs without the first `num_tokens` tokens."""
        if not num_tokens:
            return self
        log_scale, key_mask = self.log_scale, self.key_mask
        return replace(
            self,
            query=self.query[:, :, num_tokens:],
            query_features=self.query_features[:, :, num_tokens:],
            key_features=self.key_features[:, :, num_tokens:],
            value=self.value[:, :, num_tokens:],
            log_scale=None if log_scale is None else log_scale[:, :, num_tokens:],
            key_mask=None if key_mask is None else key_mask[:, num_tokens:],
        )


@dataclass(frozen=True)
class WeightedSums:
    """Attention outputs before the division: the numerator and the denominator of each query.

    Both are weighted sums over keys. Sums over different sets of keys can be added before the
    division.

    Args:
        numerator: Σ_j weight_ij v_j / exp(log_peak_i).
        denominator: Σ_j weight_ij / exp(log_peak_i).
        log_peak: Logarithm of the factor that keeps the sums of a row in range, or None for 0.
    """

    numerator: Float[Tensor, "batch heads queries dim"]
    denominator: Float[Tensor, "batch heads queries"]
    log_peak: Float[Tensor, "#batch #heads #queries"] | None = None

    @classmethod
    def from_channels(cls, sums: Tensor, log_peak: Tensor | None = None) -> "WeightedSums":
        """Create weighted sums from one tensor whose last channel is the denominator.

        The other channels are the numerator. This is the result of summing values to which
        `append_ones` has appended a channel of ones.
        """
        return cls(sums[..., :-1], sums[..., -1], log_peak)

    def _log_peak_or_zero(self) -> Tensor:
        if self.log_peak is not None:
            return self.log_peak
        return torch.zeros((), dtype=self.numerator.dtype, device=self.numerator.device)

    def __add__(self, other: "WeightedSums") -> "WeightedSums":
        """Return the sums over the keys of both operands."""
        if self.log_peak is None and other.log_peak is None:
            return WeightedSums(
                self.numerator + other.numerator, self.denominator + other.denominator
            )
        first, second = self._log_peak_or_zero(), other._log_peak_or_zero()
        peak = torch.maximum(first, second).detach()
        first, second = torch.exp(first - peak), torch.exp(second - peak)
        return WeightedSums(
            self.numerator * first[..., None] + other.numerator * second[..., None],
            self.denominator * first + other.denominator * second,
            peak,
        )

    def replace_denominator(self, other: "WeightedSums") -> "WeightedSums":
        """Return the numerators of these sums with the denominators of `other`.

        For example, some kernels divide by the number of keys instead of the sum of the weights.
        """
        factor = torch.exp(self._log_peak_or_zero() - other._log_peak_or_zero())
        return WeightedSums(self.numerator * factor[..., None], other.denominator)

    def normalize(self, *, nonnegative: bool) -> Outputs:
        """Divide the numerators by the denominators to get the attention outputs.

        A query whose weights are all 0 gets an output of 0 instead of NaN. If no weight can be
        negative (`nonnegative`), this also applies to a sum of weights that is below the smallest
        normal number of the dtype.
        """
        denominator = self.denominator
        empty = (
            denominator < torch.finfo(denominator.dtype).tiny if nonnegative else denominator == 0
        )
        # The numerator of an empty row is 0 too. A denominator of 1 gives it a finite gradient.
        return self.numerator / denominator.masked_fill(empty, 1.0)[..., None]

    def recompute_underflowed(
        self, tokens: LinearAttentionInputs, log_weight_rows: RowFunction
    ) -> "WeightedSums":
        """Compute attention again for the queries whose weights have all underflowed to 0.

        Weights underflow if a masked key has a far larger position-dependent weight than all other
        keys. Underflow is detected in eager mode only. In compiled graphs and `torch.func`
        transforms, the sums are returned unchanged.

        Args:
            tokens: Inputs from which the sums were computed.
            log_weight_rows: Function that returns the log of the position-dependent weights of some
                queries and all keys.
        """
        mode = execution_mode(tokens.query_features, tokens.key_features, tokens.value)
        if mode is not ExecutionMode.EAGER:
            return self
        with torch.no_grad():
            # Absolute features, because a sum of products of both signs may be small without an
            # underflow.
            total = tokens.key_features.abs().sum(dim=2)[..., None]
            weights_without_positions = (tokens.query_features.abs() @ total)[..., 0]
            threshold = UNDERFLOW[tokens.value.dtype] * weights_without_positions
            rows = selected_query_indices(self.denominator.abs() < threshold)
        return self.recompute_outputs(rows, tokens, log_weight_rows)

    def recompute_outputs(
        self, rows: QueryIndices, tokens: LinearAttentionInputs, log_weight_rows: RowFunction
    ) -> "WeightedSums":
        """Compute attention again for some of the queries, from the weights of all their keys.

        The weights of each query are divided by its largest position-dependent weight, so that they
        do not underflow.
        """
        if len(rows) == 0:
            return self
        is_kept = (tokens.key_features != 0).any(dim=-1)[:, :, None]
        log_pairs = log_weight_rows(rows)[None].masked_fill(~is_kept, -torch.inf)
        peak = log_pairs.detach().amax(dim=-1)
        peak = peak.masked_fill(peak == -torch.inf, 0.0)
        products = tokens.query_features[:, :, rows] @ tokens.key_features.mT
        sums = (products * torch.exp(log_pairs - peak[..., None])) @ append_ones(tokens.value)
        log_peak = self._log_peak_or_zero().expand(self.denominator.shape)
        return WeightedSums(
            self.numerator.index_copy(2, rows, sums[..., :-1]),
            self.denominator.index_copy(2, rows, sums[..., -1]),
            log_peak.index_copy(2, rows, peak),
        )


def selected_query_indices(is_selected: Tensor) -> QueryIndices:
    """Return the indices of the queries that are selected in at least one sample and head.

    On the "meta" device, where tensors have no elements, the result is empty.
    """
    if is_selected.is_meta:
        return is_selected.new_zeros(0, dtype=torch.long)
    return is_selected.flatten(0, 1).any(dim=0).nonzero().flatten()


def add_prefix_tokens(
    sums: WeightedSums,
    tokens: LinearAttentionInputs,
    num_prefix_tokens: int,
    sums_without_positions: Callable[[Tensor, Tensor, Tensor], WeightedSums],
) -> WeightedSums:
    """Add tokens without a position, such as a class token, to the sums of linear attention.

    The given sums contain only tokens with a position. The result contains all tokens, and those
    without a position come first.

    Args:
        sums: Sums of the tokens with a position over each other.
        tokens: All tokens.
        num_prefix_tokens: Number of tokens without a position.
        sums_without_positions: Function that returns the sums over pairs with a token without a
            position, from features of queries, features of keys, and values.
    """
    if not num_prefix_tokens:
        return sums
    first = num_prefix_tokens
    query_features, key_features, value = tokens.query_features, tokens.key_features, tokens.value
    over_prefix = sums_without_positions(
        query_features[:, :, first:], key_features[:, :, :first], value[:, :, :first]
    )
    if tokens.key_mask is not None and sums.log_peak is not None:
        # A prefix without kept keys must not determine the scale of a row.
        has_keys = tokens.key_mask[:, None, :first].any(dim=-1, keepdim=True)
        log_peak = torch.where(has_keys, 0.0, LOWEST_LOG_SCALE).to(value.dtype)
        over_prefix = replace(over_prefix, log_peak=log_peak)
    sums = sums + over_prefix
    prefix = sums_without_positions(query_features[:, :, :first], key_features, value)
    log_peak = sums.log_peak
    if log_peak is not None:
        log_peak = pad(log_peak.expand(sums.denominator.shape), (first, 0))
    return WeightedSums(
        torch.cat([prefix.numerator, sums.numerator], dim=2),
        torch.cat([prefix.denominator, sums.denominator], dim=2),
        log_peak,
    )
