"""A kernel with features by way of the backend that its relative kernel allows."""

from jaxtyping import Bool, Float
from torch import Tensor

from teka.functional.backend.fft import fft
from teka.functional.backend.linear.causal import causal_linear
from teka.functional.backend.linear.fused_linear import fused_linear
from teka.functional.backend.linear.linear import linear
from teka.functional.backend.linear.rotary_sums import rotary_sums
from teka.functional.backend.prefix import add_prefix
from teka.functional.backend.rings.causal_rings import causal_rings
from teka.functional.backend.rings.rings import rings
from teka.functional.backend.sums import Sums
from teka.functional.backend.toeplitz.toeplitz import toeplitz
from teka.functional.eager import is_plain_eager_on_cpu
from teka.functional.kernel import FeatureKernel
from teka.functional.kernel.local import LocalKernel
from teka.functional.placement import Placement
from teka.functional.relative import (
    Relative,
    RingRelative,
    RotaryRelative,
    SeparableRelative,
    StationaryRelative,
    WaveRelative,
)

# In place of s of a dropped key: below every other, and finite, so that differences are no NaN.
LOWEST_LOG_SCALE = -1e30


def fast(
    backend: str,
    query: Float[Tensor, "batch heads queries dim"],
    key: Float[Tensor, "batch heads keys dim"],
    value: Float[Tensor, "batch heads keys dim_value"],
    kernel: FeatureKernel,
    relative: Relative | None,
    placement: Placement,
    *,
    scale: float,
    key_mask: Bool[Tensor, "batch keys"] | None,
    is_causal: bool,
) -> Float[Tensor, "batch heads queries dim_value"]:
    """Attention by a backend other than dense."""
    # The fused sums take a denominator to be positive.
    simple = relative is None or (isinstance(relative, WaveRelative) and placement.num_prefix_tokens == 0)
    simple = simple and kernel.nonnegative
    if backend == "linear" and simple and not is_causal and isinstance(kernel, LocalKernel) and kernel.is_its_map:
        waves = _waves(relative, placement, query) if isinstance(relative, WaveRelative) else ()
        if is_plain_eager_on_cpu(query, key, value, *waves):
            return fused_linear(query, key, value, *waves, kernel=kernel, scale=scale, key_mask=key_mask)
    sums = _sums(
        backend, query, key, value, kernel, relative, placement, scale=scale, key_mask=key_mask, is_causal=is_causal
    )
    return sums.divide(nonnegative=kernel.nonnegative)


def _waves(relative: WaveRelative, placement: Placement, query: Tensor) -> tuple[Tensor, Tensor]:
    """Waves at the places of queries and keys, shape (1, H, L, waves) or (B, H, L, waves)."""
    query_waves = relative.query_waves(placement.query.places(query.device), query.dtype)
    key_waves = relative.key_waves(placement.key.places(query.device), query.dtype)
    return (
        query_waves if query_waves.ndim == 4 else query_waves[None],
        key_waves if key_waves.ndim == 4 else key_waves[None],
    )


def _sums(
    backend: str,
    query: Float[Tensor, "batch heads queries dim"],
    key: Float[Tensor, "batch heads keys dim"],
    value: Float[Tensor, "batch heads keys dim_value"],
    kernel: FeatureKernel,
    relative: Relative | None,
    placement: Placement,
    *,
    scale: float,
    key_mask: Bool[Tensor, "batch keys"] | None,
    is_causal: bool,
) -> Sums:
    """Sums of a backend; pairs with a prefix token, for which c = 1, go through the linear one."""
    query_features, key_features, log_scale = kernel.feature_maps(
        query, key, scale=scale, key_mask=key_mask, is_causal=is_causal
    )
    if log_scale is not None and key_mask is not None:
        log_scale = log_scale.masked_fill(~key_mask[:, None], LOWEST_LOG_SCALE)
    if relative is None:
        if is_causal:
            return causal_linear(query_features, key_features, log_scale, value)
        return linear(query_features, key_features, value)
    first = placement.num_prefix_tokens
    placed = (query_features[:, :, first:], key_features[:, :, first:], value[:, :, first:])
    if isinstance(relative, RotaryRelative):
        sums = _rotary(*placed, log_scale, relative, placement, is_causal=is_causal)
    elif backend == "linear":
        assert isinstance(relative, WaveRelative)
        waves = _waves(relative, placement, query)
        causal = (*placed[:2], log_scale, placed[2], *waves)
        sums = causal_linear(*causal) if is_causal else linear(*placed, *waves)
    elif backend == "rings":
        assert isinstance(relative, RingRelative)
        assert placement.shared_grid is not None
        arguments = (query[:, :, first:], *placed[:2], placed[2], relative, placement.shared_grid)
        mask = None if key_mask is None else key_mask[:, first:]
        if is_causal:
            sums = causal_rings(*arguments[:3], log_scale, *arguments[3:], scale=scale, key_mask=mask)
        else:
            sums = rings(*arguments, scale=scale, key_mask=mask)
    elif backend == "toeplitz":
        assert isinstance(relative, SeparableRelative)
        sums = toeplitz(*placed, relative, placement)
    else:
        assert isinstance(relative, StationaryRelative)
        sums = fft(*placed, relative, placement)
    return add_prefix(sums, query_features, key_features, value, first, relative)


def _rotary(
    query_features: Float[Tensor, "batch heads queries features"],
    key_features: Float[Tensor, "batch heads keys features"],
    value: Float[Tensor, "batch heads keys dim_value"],
    log_scale: Float[Tensor, "batch heads keys"] | None,
    relative: RotaryRelative,
    placement: Placement,
    *,
    is_causal: bool,
) -> Sums:
    """The numerator from turned features, the denominator from what no turn changes or from the same."""
    weighing = (
        relative.weighing(query_features, placement.query.places(value.device)),
        relative.weighing(key_features, placement.key.places(value.device)),
    )
    return rotary_sums(relative, query_features, key_features, *weighing, value, log_scale, is_causal=is_causal)
