"""A layer whose random features predict the mean of the values says so, once a draw."""

import warnings

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack  # there is no public way to ask

from teka.functional.estimator_report import estimator_report
from teka.functional.placement import Sites
from teka.functional.relative import Relative
from teka.nn.random_features import RandomFeatures

# Tokens of one sample on which an estimator is compared with the truth, once.
CHECKED_TOKENS = 256


class CollapseWarning(UserWarning):
    """A layer's random features predict the mean of the values."""


def warn_of_collapse(
    random_features: RandomFeatures,
    query: Float[Tensor, "batch heads queries dim"],
    key: Float[Tensor, "batch heads keys dim"],
    value: Float[Tensor, "batch heads keys dim_value"],
    *,
    relative: Relative | None,
    sites: Sites,
    key_mask: Bool[Tensor, "batch keys"] | None,
) -> None:
    """Compare a new draw of random features with the truth, on the first kept tokens of one sample; warn of a collapse.

    Nothing is compared in a compiled graph or within a transform of `torch.func`, where there are no numbers to look
    at; the draw then stays to be compared.

    Args:
        random_features: The draw; one that has been compared is not compared again.
        query: Queries.
        key: Keys.
        value: Values.
        relative: A relative kernel that goes through the random features, or None.
        sites: Where the last tokens are, for such a kernel; tokens before them have no position.
        key_mask: True where a key is kept.
    """
    if torch.compiler.is_compiling() or not random_features.is_fresh or peek_interpreter_stack() is not None:
        return
    random_features.is_fresh = False
    placed = None
    if relative is not None:
        first = key.shape[2] - (sites.num_tokens or 0)
        query, key, value = (tensor[:, :, first:] for tensor in (query, key, value))
        key_mask = None if key_mask is None else key_mask[:, first:]
        positions = sites.positions_like(query.detach().double())
        placed = positions if positions.ndim == 2 else positions[0]
    kept = torch.arange(key.shape[2], device=key.device) if key_mask is None else key_mask[0].nonzero().flatten()
    kept = kept[:CHECKED_TOKENS]
    rows = kept[kept < query.shape[2]] if placed is not None else slice(0, CHECKED_TOKENS)
    if len(kept) == 0:
        return
    report = estimator_report(
        query[:1, :, rows],
        key[:1, :, kept],
        value[:1, :, kept],
        random_features(),
        relative=relative,
        positions=None if placed is None else placed[kept],
    )
    if report.collapsed:
        warnings.warn(
            f"{random_features!r} has collapsed: its output varies about the mean of the values by {report.spread:.1%} "
            f"of what softmax attention's does; take more features, smaller queries and keys, or another kernel "
            "(teka.diagnose tells more)",
            CollapseWarning,
            stacklevel=5,  # past the layer's forward and torch's two frames of a call
        )
