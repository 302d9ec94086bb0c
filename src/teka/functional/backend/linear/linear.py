"""The linear backend: kernels with a feature map, alone or times a few waves of the positions, O(L) work and memory."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from teka.functional.backend.again import again_in_backward
from teka.functional.backend.sums import Sums, with_ones

# Numbers of one chunk of φ ⊗ waves: 4 MiB in float32, so that it stays in a processor's cache between its making and
# its use. Chunks are made again in the backward pass.
CHUNK_ELEMENTS = 2**20


def linear(
    query_features: Float[Tensor, "batch heads queries features"],
    key_features: Float[Tensor, "batch heads keys features"],
    value: Float[Tensor, "batch heads keys dim_value"],
    query_waves: Float[Tensor, "#batch heads queries waves"] | None = None,
    key_waves: Float[Tensor, "#batch heads keys waves"] | None = None,
) -> Sums:
    """Σ_j φ(q_i)ᵀφ(k_j) c_ij v_j = φ(q_i)ᵀ (Σ_j φ(k_j) v_jᵀ) for c = 1, and the same without v.

    With c_ij = a(x_i)ᵀb(x_j) the features are the products φ ⊗ a and φ ⊗ b. These are made for a chunk of tokens at a
    time, so that memory grows with L · (m + waves + d) alone.

    Source: Katharopoulos et al. 2020, equation 5.
    """
    if query_waves is None or key_waves is None:
        state = key_features.transpose(-2, -1) @ value
        total = key_features.sum(dim=-2)
        return Sums(query_features @ state, (query_features @ total[..., None])[..., 0])
    value = with_ones(value)
    state = torch.zeros((), dtype=value.dtype, device=value.device)
    for part in _chunks(key_features, key_waves, value):
        state = state + again_in_backward(_state, *part)
    sums = [again_in_backward(_read, *part, state) for part in _chunks(query_features, query_waves)]
    joined = torch.cat(sums, dim=2)
    return Sums(joined[..., :-1], joined[..., -1])


def product_features(
    features: Float[Tensor, "batch heads tokens features"], waves: Float[Tensor, "#batch heads tokens waves"] | None
) -> Float[Tensor, "batch heads tokens products"]:
    """φ ⊗ waves, or φ where there are no waves."""
    return features if waves is None else (features[..., None, :] * waves[..., :, None]).flatten(-2)


def _state(features: Tensor, waves: Tensor, value: Tensor) -> Tensor:
    return product_features(features, waves).transpose(-2, -1) @ value


def _read(features: Tensor, waves: Tensor, state: Tensor) -> Tensor:
    return product_features(features, waves) @ state


def _chunks(features: Tensor, waves: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Features, waves and others in chunks of tokens; split, for the gradient of a slice is as long as the whole."""
    batch, heads, num_tokens, size = features.shape
    chunk = max(1, min(num_tokens, CHUNK_ELEMENTS // max(1, batch * heads * size * waves.shape[-1])))
    return zip(*(tensor.split(chunk, dim=2) for tensor in (features, waves, *others)), strict=True)
