"""Linear attention on one device, or with the tokens of a sequence divided among processes."""

import torch
from torch import Tensor, distributed
from torch.autograd import Function

from teka._compat import ProcessGroup
from teka.functional.backends.attention_sums import LOWEST_LOG_SCALE, FeatureInputs, WeightedSums
from teka.functional.backends.linear import LinearFeatures, LinearState, causal_sums
from teka.functional.kernels.content_kernel import FeatureKernel
from teka.functional.shapes import KeyMask, Keys, Queries, Values
from teka.precision import backward_without_autocast


def compute_features(
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
    """Map queries and keys to features, and collect them with the values."""
    # The sums of several processes need a log scale for each key, because a factor of all keys
    # would be different in every process.
    query_features, key_features, log_scale = kernel.feature_maps(
        query, key, scale=scale, key_mask=key_mask, is_causal=is_causal or group is not None
    )
    if log_scale is not None and key_mask is not None:
        log_scale = log_scale.masked_fill(~key_mask[:, None], LOWEST_LOG_SCALE)
    return FeatureInputs(
        query=query,
        query_features=query_features,
        key_features=key_features,
        value=value,
        log_scale=log_scale,
        key_mask=key_mask,
        scale=scale,
        is_causal=is_causal,
        group=group,
    )


def position_free_sums(tokens: FeatureInputs) -> WeightedSums:
    """Compute linear attention whose weights do not depend on positions.

    Return the numerator and the denominator of each output.
    """
    query, key = LinearFeatures(tokens.query_features), LinearFeatures(tokens.key_features)
    return linear_sums(tokens, query, key)


def linear_sums(tokens: FeatureInputs, query: LinearFeatures, key: LinearFeatures) -> WeightedSums:
    """Compute linear attention, and return the numerator and the denominator of each output.

    Both are sums over the keys. Attention is bidirectional or causal. If the tokens are divided
    among several processes, the sums include the keys of all processes.

    Args:
        tokens: Values and log scales; its features are not used.
        query: Vectors of the queries.
        key: Vectors of the keys.
    """
    if tokens.group is not None:
        return _sums_over_processes(tokens, query, key, tokens.group)
    if tokens.is_causal:
        return causal_sums(query, key, tokens.value, tokens.log_scale)
    return LinearState.from_keys(key, tokens.value, tokens.log_scale).read(query)


def _sums_over_processes(
    tokens: FeatureInputs, query: LinearFeatures, key: LinearFeatures, group: ProcessGroup
) -> WeightedSums:
    """Compute linear attention from the queries of this process to the keys of all processes.

    In causal attention, queries attend to the keys of earlier processes, and to the keys of this
    process up to their own position. Processes exchange only sums over their keys, whose size does
    not depend on the number of tokens.
    """
    rank = group.rank()
    log_scale = tokens.log_scale
    log_scale = torch.zeros_like(tokens.value[..., 0]) if log_scale is None else log_scale
    own = LinearState.from_keys(key, tokens.value, log_scale)
    assert own.log_peak is not None
    peaks = own.log_peak.new_full((group.size(), *own.log_peak.shape), -torch.inf)
    peaks[rank] = own.log_peak
    distributed.all_reduce(peaks, distributed.ReduceOp.MAX, group)
    ranks = torch.arange(group.size(), device=peaks.device)
    if tokens.is_causal:
        peaks = peaks.masked_fill((ranks >= rank).view(-1, 1, 1), -torch.inf)
    log_peak = peaks.amax(dim=0)
    shares = torch.exp(peaks - log_peak.clamp_min(LOWEST_LOG_SCALE))

    def total(sums: Tensor) -> Tensor:
        shape = (*shares.shape, *[1] * (sums.ndim - 2))
        if not tokens.is_causal:
            return _AllReduceSum.apply(shares.view(shape)[rank] * sums, group)
        # The first process has no earlier keys, but takes part in the exchange.
        is_own = (ranks == rank).to(sums).view(-1, *[1] * sums.ndim)
        return (shares.view(shape) * _AllReduceSum.apply(is_own * sums, group)).sum(dim=0)

    state = LinearState(total(own.values), tuple(map(total, own.weights)), log_peak)
    if not tokens.is_causal:
        return state.read(query)
    return causal_sums(query, key, tokens.value, log_scale) + state.read(query)


class _AllReduceSum(Function):
    """Differentiable all-reduce, which sums a tensor over all processes of a group.

    The backward pass sums the gradients over the processes as well.
    """

    @staticmethod
    def forward(ctx, tensor, group):
        ctx.group = group
        total = tensor.clone()
        distributed.all_reduce(total, group=group)
        return total

    @staticmethod
    @backward_without_autocast
    def backward(ctx, *grad_outputs):
        return _AllReduceSum.apply(grad_outputs[0], ctx.group), None
