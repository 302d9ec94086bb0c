"""Sums over keys where the denominator is made of other vectors than the numerator."""

from jaxtyping import Float
from torch import Tensor

from teka.functional.backend.linear.causal import causal_linear
from teka.functional.backend.linear.linear import linear
from teka.functional.backend.sums import Sums
from teka.functional.relative import RotaryRelative


def rotary_sums(
    relative: RotaryRelative,
    query_features: Float[Tensor, "batch heads queries features"],
    key_features: Float[Tensor, "batch heads keys features"],
    query_weighing: Float[Tensor, "batch heads queries weighing"],
    key_weighing: Float[Tensor, "batch heads keys weighing"],
    value: Float[Tensor, "batch heads keys dim_value"],
    key_log_scale: Float[Tensor, "batch heads keys"] | None = None,
    *,
    placed: bool = True,
    is_causal: bool = False,
) -> Sums:
    """Σ_j w_ij v_j from the vectors of the weights, and D_i from those of the denominator, where these are others.

    Args:
        relative: The kernel, which says what denominators are made of.
        query_features: φ(q).
        key_features: φ(k).
        query_weighing: Vectors of the weights, of queries.
        key_weighing: Vectors of the weights, of keys.
        value: Values.
        key_log_scale: s of `causal_linear`, or None for s = 0.
        placed: Whether these are pairs of tokens that are both somewhere.
        is_causal: Whether no query sees a later key.
    """

    def sums(left: Tensor, right: Tensor, values: Tensor) -> Sums:
        return causal_linear(left, right, key_log_scale, values) if is_causal else linear(left, right, values)

    if relative.sums_weights:
        return sums(query_weighing, key_weighing, value)
    numerator = sums(query_weighing, key_weighing, value).numerator
    left, right = (relative.normalizing(one, placed=placed) for one in (query_features, key_features))
    return Sums(numerator, sums(left, right, value[..., :0]).denominator)
