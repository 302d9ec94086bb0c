"""The mean over the tokens that count."""

from jaxtyping import Bool, Float
from torch import Tensor


def kept_mean(
    vectors: Float[Tensor, "batch heads tokens dim"], mask: Bool[Tensor, "batch tokens"] | None
) -> Float[Tensor, "batch heads 1 dim"]:
    """Mean of each batch and head over its kept tokens; 0 if none is kept, and what is dropped may be NaN.

    Args:
        vectors: One vector a token.
        mask: True where a token is kept, or None for all.
    """
    if mask is None:
        return vectors.mean(dim=-2, keepdim=True)
    kept = vectors.masked_fill(~mask[:, None, :, None], 0.0)
    count = mask.sum(dim=-1).clamp_min(1)[:, None, None, None]
    return kept.sum(dim=-2, keepdim=True) / count
