"""Sums of products of features over all keys, those of one process or those of several."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, distributed
from torch.autograd import Function

from teka._compat import ProcessGroup, replace
from teka.execution_mode import is_dynamic
from teka.functional.backends import LOWEST_LOG_SCALE, FeatureInputs, WeightedSums, with_ones
from teka.functional.backends.linear import (
    LinearState,
    causal_linear,
    linear,
    product_features,
    value_sums,
    weight_sums,
)
from teka.functional.kernels.base import FeatureKernel
from teka.functional.shapes import KeyMask, Keys, Queries, Values
from teka.precision import backward_without_autocast


def featured(
    kernel: FeatureKernel,
    query: Queries,
    key: Keys,
    value: Values,
    *,
    scale: float,
    key_mask: KeyMask,
    is_causal: bool,
    group: ProcessGroup | None = None,
) -> FeatureInputs:
    """Queries, keys and values with the features that a kernel makes of them."""
    options = {"scale": scale, "key_mask": key_mask}
    # What several processes add must not be over a factor of a process' own keys.
    query_features, key_features, log_scale = kernel.feature_maps(
        query, key, is_causal=is_causal or group is not None, **options
    )
    if log_scale is not None and key_mask is not None:
        log_scale = log_scale.masked_fill(~key_mask[:, None], LOWEST_LOG_SCALE)
    return FeatureInputs(
        query,
        query_features,
        key_features,
        value,
        log_scale,
        is_causal=is_causal,
        group=group,
        **options,
    )


@dataclass(frozen=True)
class LinearFeatures:
    """Vectors of queries or of keys whose inner products weigh the values.

    Args:
        numerator: Vectors whose inner products are the weights of the numerator.
        denominator: Pairs of a weight and vectors: the denominator is the weighted sum of their inner products. Empty
            if the denominator is the sum of the numerator's weights.
    """

    numerator: Tensor
    denominator: tuple[tuple[float, Tensor], ...] = ()

    def joined_denominator(self) -> Tensor:
        """Return vectors whose inner products are the weighted sum of those of `denominator`."""
        return torch.cat([math.sqrt(weight) * part for weight, part in self.denominator], dim=-1)


def linear_sums(tokens: FeatureInputs, query: LinearFeatures, key: LinearFeatures) -> WeightedSums:
    """Return the weighted sums of values over keys, and the denominators."""
    numerator = replace(tokens, query_features=query.numerator, key_features=key.numerator)
    if not query.denominator:
        return plain_sums(numerator)
    is_scaled = tokens.log_scale is not None or tokens.group is not None
    if is_scaled or (tokens.is_causal and is_dynamic(tokens.value.shape[2])):
        sums = plain_sums(numerator)
        joined = replace(
            tokens,
            query_features=query.joined_denominator(),
            key_features=key.joined_denominator(),
            value=tokens.value[..., :0],
        )
        return WeightedSums(sums.numerator, plain_sums(joined).denominator)
    is_causal = tokens.is_causal
    values = value_sums(query.numerator, key.numerator, tokens.value, is_causal=is_causal)
    pairs = zip(query.denominator, key.denominator, strict=True)
    totals = [
        weight * weight_sums(left, right, is_causal=is_causal)
        for (weight, left), (_, right) in pairs
    ]
    return WeightedSums(values, sum(totals[1:], totals[0]))


def plain_sums(tokens: FeatureInputs, *waves: Tensor) -> WeightedSums:
    """Sums of products of features and, if there are any, waves of queries and keys."""
    if tokens.group is not None:
        return _divided_sums(tokens, tokens.group, *waves)
    features = (tokens.query_features, tokens.key_features)
    if tokens.is_causal:
        return causal_linear(*features, tokens.log_scale, tokens.value, *waves)
    return linear(*features, tokens.value, *waves)


def _divided_sums(tokens: FeatureInputs, group: ProcessGroup, *waves: Tensor) -> WeightedSums:
    """The sums of a process' queries over the keys of all, or if causal over those of the processes before it too.

    Every process has the state Σ_j φ(k_j) [v_j, 1] of its own keys, whose size does not depend on how many they are.
    One sum over the processes, and one maximum of s, are all that is sent; a gradient goes the same way back.
    """
    query_waves, key_waves = waves or (None, None)
    value = with_ones(tokens.value)
    log_scale = torch.zeros_like(value[..., 0]) if tokens.log_scale is None else tokens.log_scale
    peak = log_scale.detach().amax(dim=-1)
    rank, peaks = group.rank(), peak.new_full((group.size(), *peak.shape), -torch.inf)
    peaks[rank] = peak
    distributed.all_reduce(peaks, distributed.ReduceOp.MAX, group)
    if not tokens.is_causal:
        peak = peaks.amax(dim=0)
    weighted = (
        product_features(tokens.key_features, key_waves)
        * torch.exp(log_scale - peak[..., None])[..., None]
    )
    own = weighted.transpose(-2, -1) @ value
    if not tokens.is_causal:
        state = _SumOverProcesses.apply(own, group)
        return WeightedSums.of_channels(
            product_features(tokens.query_features, query_waves) @ state
        )
    places = torch.arange(len(peaks), device=own.device)
    states = _SumOverProcesses.apply((places == rank).to(own).view(-1, 1, 1, 1, 1) * own, group)
    before = peaks.masked_fill((places >= rank).view(-1, 1, 1), -torch.inf)
    peak = before.amax(dim=0)
    # Of the first process nothing is before; it takes part in the gradient of the sum all the same.
    share = torch.exp(before - peak.clamp_min(LOWEST_LOG_SCALE))[..., None, None]
    state = LinearState((share * states).sum(dim=0), peak)
    features = (tokens.query_features, tokens.key_features)
    return causal_linear(*features, tokens.log_scale, tokens.value, *waves, state=state)


class _SumOverProcesses(Function):
    """The sum of a tensor over the processes of a group; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx, tensor, group):
        ctx.group = group
        total = tensor.clone()
        distributed.all_reduce(total, group=group)
        return total

    @staticmethod
    @backward_without_autocast
    def backward(ctx, *grad_outputs):
        return _SumOverProcesses.apply(grad_outputs[0], ctx.group), None
