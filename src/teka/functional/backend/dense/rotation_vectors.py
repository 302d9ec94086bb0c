"""Softmax with the rotation kernel as softmax of longer vectors."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from teka.functional.placement import Placement
from teka.functional.relative import Rotation
from teka.functional.relative.phase import phases


def rotation_vectors(
    query: Float[Tensor, "batch heads queries dim"],
    key: Float[Tensor, "batch heads keys dim"],
    relative: Rotation,
    placement: Placement,
    *,
    scale: float,
) -> tuple[Float[Tensor, "batch heads queries joint"], Float[Tensor, "batch heads keys joint"]]:
    """Queries and keys with waves of their positions, whose inner product is scale · qᵀk + log c.

    With α cos ω(x − y) + β sin ω(x − y) = ⟨[α sin ωx − β cos ωx, β sin ωx + α cos ωx], [sin ωy, cos ωy]⟩ for every axis
    and scale. The waves of a token without a position are 0, so that c = 1 for its pairs.

    Source: Horn et al. 2021, Lemma 1.

    Args:
        query: Queries.
        key: Keys.
        relative: The rotation kernel.
        placement: Where they are, without a periodic axis: on such a one c is a function of the wrapped offset.
        scale: Factor of qᵀk.
    """
    num_axes = relative.cosine_weight.shape[1]
    axes = torch.eye(num_axes, dtype=relative.frequency.dtype, device=relative.frequency.device)
    # One frequency vector for every axis and scale: ω_s along that axis.
    frequency = (axes[:, None] * relative.frequency[:, None]).flatten(0, 1)[None]
    alpha, beta = (weight.to(query).flatten(1)[:, None] for weight in (relative.cosine_weight, relative.sine_weight))
    at_query, at_key = (
        phases(frequency, sites.places(query.device), query.dtype) for sites in (placement.query, placement.key)
    )
    sine, cosine = torch.sin(at_query), torch.cos(at_query)
    rotated = relative.scale * torch.cat([alpha * sine - beta * cosine, beta * sine + alpha * cosine], dim=-1)
    plain = torch.cat([torch.sin(at_key), torch.cos(at_key)], dim=-1)
    joined = []
    for vectors, waves in ((query * scale, rotated), (key, plain)):
        placed = pad(waves, (0, 0, placement.num_prefix_tokens, 0))
        joined.append(torch.cat([vectors, placed.expand(*vectors.shape[:-1], -1)], dim=-1))
    return joined[0], joined[1]
