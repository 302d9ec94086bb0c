"""Sums over a grid with a separable kernel, and all their gradients, on one core at a time."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from teka.functional.backend.toeplitz.axis_products import MatrixSums, Workspace
from teka.functional.backend.transposed import transposed
from teka.functional.backend.wanted import Wanted

# Features in a chunk up to which their maps are added one by one, with no further buffer; more are small maps.
FEW_MAPS = 8


def axis_sums(
    query_features: Float[Tensor, "batch heads queries features"],
    key_features: Float[Tensor, "batch heads keys features"],
    value: Float[Tensor, "batch heads keys channels"],
    matrices: Sequence[Float[Tensor, "heads _ _"]],
) -> Float[Tensor, "batch heads queries channels"]:
    """Σ_j φ(q_i)ᵀφ(k_j) Π_axis C_axis[i, j] v_j.

    For a few features at a time φ(k_j) ⊗ v_j is multiplied by the matrix of one axis after another and contracted with
    φ(q_i): L · m · channels · Σ sides multiply-adds. What is held beside inputs and output does not grow with L · m.
    """
    batch, heads, num_queries, num_features = query_features.shape
    num_channels = value.shape[-1]
    workspace = Workspace(matrices, num_features, num_channels, keep=False)
    output = value.new_empty(batch, heads, num_queries, num_channels)
    for head in range(heads):
        own = [matrix[head] for matrix in matrices]
        for sample in range(batch):
            query, key, values = (transposed(tensor[sample, head]) for tensor in (query_features, key_features, value))
            total = torch.zeros_like(output[0, 0].T, memory_format=torch.contiguous_format)
            features = [one.split(workspace.features) for one in (query, key)]
            channels = [one.split(workspace.channels) for one in (values, total)]
            for part, part_sum in zip(*channels, strict=True):
                for weight, feature in zip(*features, strict=True):
                    maps = workspace.maps(len(feature), len(part))
                    torch.mul(feature[:, None], part, out=maps.keys)
                    maps.push(own)
                    _add_weighted(part_sum, maps.queries, weight)
            output[sample, head] = total.T
    return output


def axis_sums_gradients(
    gradient: Float[Tensor, "batch heads queries channels"],
    query_features: Float[Tensor, "batch heads queries features"],
    key_features: Float[Tensor, "batch heads keys features"],
    value: Float[Tensor, "batch heads keys channels"],
    matrices: Sequence[Float[Tensor, "heads _ _"]],
    wanted: Wanted,
) -> list[Tensor | None]:
    """Gradients of `axis_sums` for φ(q), φ(k), v and the matrices, from that of its output.

    The matrices' transposes take φ(q_i) ⊗ g_i back to the keys' grid, where its contractions with v and φ(k) are the
    gradients of φ(k) and v. That of φ(q) is the contraction of g with the maps on the queries' grid, which are made
    again, and that of a matrix is the product of the maps on both its sides: six products where the forward pass of two
    axes takes two.
    """
    batch, heads, _, num_features = query_features.shape
    workspace = Workspace(matrices, num_features, value.shape[-1], keep=True)
    given = (query_features, key_features, value)
    of_query, of_key, of_value = (torch.empty_like(one, memory_format=torch.contiguous_format) for one in given)
    of_matrices = [torch.zeros_like(matrix) for matrix in matrices]
    for head in range(heads):
        own = [matrix[head] for matrix in matrices]
        sums = MatrixSums(workspace, value) if wanted.matrices else None
        for sample in range(batch):
            query, key, values, arrived = (transposed(tensor[sample, head]) for tensor in (*given, gradient))
            query_sum, key_sum, value_sum = (torch.zeros_like(one) for one in (query, key, values))
            features = [one.split(workspace.features) for one in (query, key, query_sum, key_sum)]
            channels = [one.split(workspace.channels) for one in (values, arrived, value_sum)]
            for part, part_arrived, part_sum in zip(*channels, strict=True):
                for left, right, left_sum, right_sum in zip(*features, strict=True):
                    maps = workspace.maps(len(left), len(part))
                    if wanted.query_features or wanted.matrices:
                        torch.mul(right[:, None], part, out=maps.keys)
                        maps.push(own)
                    if wanted.query_features:
                        left_sum += maps.queries.mul_(part_arrived).sum(dim=1)
                    torch.mul(left[:, None], part_arrived, out=maps.queries)
                    maps.pull(own, sums)
                    if wanted.value:
                        _add_weighted(part_sum, maps.keys, right)
                    if wanted.key_features:
                        right_sum += maps.keys.mul_(part).sum(dim=1)
            of_query[sample, head], of_key[sample, head], of_value[sample, head] = query_sum.T, key_sum.T, value_sum.T
        if sums is not None:
            for product, total in zip(workspace.products, sums.totals(), strict=True):
                of_matrices[product.axis][head] = total
    asked = (wanted.query_features, wanted.key_features, wanted.value, *[wanted.matrices] * len(matrices))
    return [one if ask else None for one, ask in zip((of_query, of_key, of_value, *of_matrices), asked, strict=True)]


def _add_weighted(
    total: Float[Tensor, "channels cells"],
    maps: Float[Tensor, "features channels cells"],
    weights: Float[Tensor, "features cells"],
) -> None:
    """Add the maps, each times the weight of its feature and cell."""
    if len(maps) > FEW_MAPS:
        total.add_((maps * weights[:, None]).sum(dim=0))
        return
    for one, weight in zip(maps.unbind(), weights[:, None].unbind(), strict=True):
        total.addcmul_(one, weight)
