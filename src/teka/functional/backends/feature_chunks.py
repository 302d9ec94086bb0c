"""Linear attention in chunks of features, to limit the memory.

The backward pass computes each chunk again instead of storing it.
"""

from collections.abc import Callable
from typing import TypeVar, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from teka.execution_mode import ExecutionMode, execution_mode
from teka.functional.shapes import KeyChannels, KeyFeatures, QueryChannels, QueryFeatures

T = TypeVar("T")

# Elements of φ(k) ⊗ [v, 1] that are held at once: 16 MiB in float32.
CHUNK_ELEMENTS = 2**22


def run_checkpointed(function: Callable[..., T], *arguments: object) -> T:
    """Call a function with gradient checkpointing, which does not store intermediate tensors.

    The backward pass calls the function again. The function must not draw random numbers, because
    the state of the random number generators is not restored. Under `torch.func` transforms,
    intermediate tensors are stored as usual.
    """
    if not torch.is_grad_enabled() or execution_mode() is ExecutionMode.TRANSFORMED:
        return function(*arguments)
    output = checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
    return cast(T, output)


def sum_over_features(
    function: Callable[..., QueryChannels],
    query_features: QueryFeatures,
    key_features: KeyFeatures,
    value: KeyChannels,
    *arguments: object,
    copies: int = 1,
) -> QueryChannels:
    """Apply a function to chunks of the query and key features, and add the results.

    Chunks limit the memory. The backward pass computes each chunk again instead of storing it.

    Args:
        function: A function that is linear in φ(q) and φ(k), and sums over their features.
        query_features: φ(q).
        key_features: φ(k), with the same number of features.
        value: Values, with a column of ones.
        *arguments: Further arguments of the function.
        copies: Number of tensors of the size of φ(k) ⊗ [v, 1] that the function keeps.
    """
    num_features = key_features.shape[-1]
    # A compiled graph serves any batch size, so its number of chunks must not depend on it.
    num_samples = 1 if torch.compiler.is_compiling() else value.shape[0]
    num_elements = num_samples * value.shape[1:].numel() * num_features * copies
    if num_elements <= CHUNK_ELEMENTS:
        return function(query_features, key_features, value, *arguments)
    num_chunks = min(num_features, -(-num_elements // CHUNK_ELEMENTS))
    chunk_size = -(-num_features // num_chunks)
    chunks = zip(
        query_features.split(chunk_size, dim=-1),
        key_features.split(chunk_size, dim=-1),
        strict=True,
    )
    sums = [run_checkpointed(function, *chunk, value, *arguments) for chunk in chunks]
    return sum(sums[1:], sums[0])


def outer_product(
    key_features: KeyFeatures, value: KeyChannels
) -> Float[Tensor, "batch heads keys products"]:
    """Return the flattened outer product of each key's feature vector with its value vector.

    Linear attention needs the sum of these products over all keys.
    """
    return (key_features[..., :, None] * value[..., None, :]).flatten(-2)


def compute_numerators(
    query_features: QueryFeatures, sums: Float[Tensor, "batch heads queries products"]
) -> QueryChannels:
    """Compute the numerators of linear attention, the sums of weighted values of each query.

    For each query, `sums` contains a sum over keys of the flattened outer products of features and
    values (see `outer_product`). The numerator is the product of the query's features with it.
    """
    sums = sums.unflatten(-1, (query_features.shape[-1], -1))
    return (query_features[..., None, :] @ sums)[..., 0, :]
