"""What a layer says of itself: random features that predict the mean of the values, and outputs of any size."""

import warnings

import torch
from jaxtyping import Float
from torch import Tensor

from teka.execution_mode import is_readable
from teka.functional import Relative
from teka.functional.attention import estimator_report
from teka.functional.kernels.base import mask_features
from teka.functional.positions import Positions
from teka.functional.shapes import KeyMask, Keys, Outputs, Queries, Values
from teka.nn.diagnostics.report import bounded_instead
from teka.nn.features import RandomFeatures
from teka.nn.heads import HeadGroup

CHECKED_TOKENS = 256  # tokens of one sample on which an estimator is compared with the truth, once
LARGE_OUTPUT = 1e3  # outputs so many times as large as the largest value are warned of
STACK_LEVEL = 5  # past the layer's forward and torch's two frames of a call


class CollapseWarning(UserWarning):
    """A layer's random features predict the mean of the values.

    >>> import warnings, torch, teka
    >>> layer = teka.nn.Attention(16, 2, kernel="positive", relative=None, query_key="normalized")
    >>> _ = layer.kernel.projection.zero_()  # draws along which all keys look the same
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     _ = layer(torch.randn(1, 50, 16))
    >>> [warning.category.__name__ for warning in caught]
    ['CollapseWarning']
    """


class LargeOutputWarning(UserWarning):
    """A layer's heads gave outputs more than 1,000 times as large as the largest value.

    >>> import warnings, torch, teka
    >>> layer = teka.nn.Attention(16, 2, kernel="dot_product", relative=None)  # whose weights nothing bounds
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     _ = layer(100 * torch.randn(1, 50, 16))
    >>> [warning.category.__name__ for warning in caught]
    ['LargeOutputWarning']
    """


def warn_of_collapse(
    random_features: RandomFeatures,
    query: Queries,
    key: Keys,
    value: Values,
    *,
    relative: Relative | None,
    positions: Positions,
    key_mask: KeyMask,
) -> None:
    """Compare a new draw of random features with the truth, once there are numbers, and warn of a collapse."""
    if not is_readable(query) or not random_features.is_unchecked:
        return
    random_features.is_unchecked = False
    placed = None
    if relative is not None:
        first = key.shape[2] - (positions.num_placed or 0)
        query, key, value = (tensor[:, :, first:] for tensor in (query, key, value))
        key_mask = None if key_mask is None else key_mask[:, first:]
        places = positions.places(query.device)
        placed = places if places.ndim == 2 else places[0]
    kept = (
        torch.arange(key.shape[2], device=key.device)
        if key_mask is None
        else key_mask[0].nonzero().flatten()
    )
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
            f"{random_features!r} has collapsed: its output varies about the mean of the values by "
            f"{100 * report.spread:.1f} % of what softmax attention's does; take more features, smaller queries and "
            "keys, or another kernel (teka.diagnose tells more)",
            CollapseWarning,
            stacklevel=STACK_LEVEL,
        )


def warn_of_large_output(
    group: HeadGroup, output: Outputs, value: Values, *, key_mask: KeyMask
) -> bool:
    """Warn of outputs over `LARGE_OUTPUT` times the largest kept value of the same sample and head; whether it did."""
    if not is_readable(output):
        return False
    times = times_the_values(output.detach(), mask_features(value.detach(), key_mask))
    large = times[times > LARGE_OUTPUT]
    if len(large) == 0:
        return False
    instead = bounded_instead(None if group.relative is None else group.relative.name)
    warnings.warn(
        f"heads' outputs of {group.name} are up to {float(large.max()):.3g} times as large as the largest value: its "
        f"denominator does not bound its weights; take {instead} (teka.diagnose tells more)",
        LargeOutputWarning,
        stacklevel=STACK_LEVEL,
    )
    return True


def times_the_values(output: Outputs, value: Values) -> Float[Tensor, "batch heads"]:
    """Largest |out| over the largest |v| of every sample and head; values are 0 where a key is dropped."""
    precise = torch.promote_types(value.dtype, torch.float32)
    largest, of_values = (
        torch.linalg.vector_norm(one, torch.inf, dim=(-2, -1)).to(precise)
        for one in (output, value)
    )
    return largest / of_values.clamp_min(torch.finfo(precise).tiny)
