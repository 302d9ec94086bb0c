"""The linear backend: kernels with a feature map and no relative kernel, O(L) work and memory."""

from jaxtyping import Float
from torch import Tensor

from teka.functional.backend.sums import Sums


def linear(
    query_features: Float[Tensor, "batch heads queries features"],
    key_features: Float[Tensor, "batch heads keys features"],
    value: Float[Tensor, "batch heads keys dim_value"],
) -> Sums:
    """Σ_j φ(q_i)ᵀφ(k_j) v_j = φ(q_i)ᵀ (Σ_j φ(k_j) v_jᵀ), and the same without v.

    Source: Katharopoulos et al. 2020, equation 5.
    """
    state = key_features.transpose(-2, -1) @ value
    total = key_features.sum(dim=-2)
    return Sums(query_features @ state, (query_features @ total[..., None])[..., 0])


def linear_multiplications(num_queries: int, num_keys: int, num_features: int, dim_value: int) -> int:
    """Multiply-adds of one head: the state, and its product with the queries' features."""
    return (num_queries + num_keys) * num_features * (dim_value + 1)
