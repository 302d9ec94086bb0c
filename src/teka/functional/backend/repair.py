"""Rows that a fast backend cannot resolve, from every pair."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from teka.functional.backend.sums import Sums, with_ones
from teka.functional.placement import Placement
from teka.functional.relative import StationaryRelative


def rows_of(unresolved: Bool[Tensor, "batch heads queries"]) -> Int[Tensor, "rows"]:
    """Queries that are unresolved in any sample and head.

    Args:
        unresolved: Whether a row's sum is lost to rounding or underflow.
    """
    return unresolved.flatten(0, 1).any(dim=0).nonzero().flatten()


def with_rows_again(
    sums: Sums,
    rows: Int[Tensor, "rows"],
    query_features: Float[Tensor, "batch heads queries features"],
    key_features: Float[Tensor, "batch heads keys features"],
    value: Float[Tensor, "batch heads keys dim_value"],
    relative: StationaryRelative,
    placement: Placement,
) -> Sums:
    """The sums with some rows computed from every pair, each relative to its largest c over the keys that count.

    Args:
        sums: Sums of all rows.
        rows: Which to compute again.
        query_features: φ(q) of all rows.
        key_features: φ(k), 0 for keys that do not count.
        value: Values.
        relative: The kernel.
        placement: Where queries and keys are.
    """
    if len(rows) == 0:
        return sums
    log_rows = relative.log_at(placement.offsets_like(value, rows))[None]
    counts = (key_features != 0).any(dim=-1)[:, :, None]
    log_rows = log_rows.masked_fill(~counts, -torch.inf)
    peak = log_rows.detach().amax(dim=-1)
    peak = peak.masked_fill(peak == -torch.inf, 0.0)
    pairs = query_features[:, :, rows] @ key_features.transpose(-2, -1)
    again = (pairs * torch.exp(log_rows - peak[..., None])) @ with_ones(value)
    assert sums.log_peak is not None
    return Sums(
        sums.numerator.index_copy(2, rows, again[..., :-1]),
        sums.denominator.index_copy(2, rows, again[..., -1]),
        sums.log_peak.expand(sums.denominator.shape).index_copy(2, rows, peak),
    )
