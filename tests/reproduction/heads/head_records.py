"""Invented records of heads in the format of `heads.npz`."""

import numpy as np

from reproduction.heads.attention_patterns import RESEMBLANCE_METRICS


def head_arrays(*, layers=(3, 2), moments=3, gaussian=True, grid=(5, 7)):
    """Return the arrays of heads that move to the right and become sharper."""
    layer = np.repeat(np.arange(len(layers)), layers)
    heads = len(layer)
    time = np.arange(moments)[:, None]
    center = np.stack(np.broadcast_arrays(np.arange(heads) - 2.0, 0.5 * time - 1.0), axis=-1)
    precision = np.broadcast_to(
        np.eye(2) * (1.0 + np.arange(moments))[:, None, None, None], (moments, heads, 2, 2)
    )
    covariance = np.linalg.inv(precision)
    counts = np.broadcast_to(np.array(layers), (moments, len(layers)))
    arrays = {
        "grid": np.array(grid),
        "layer": layer,
        "epoch": np.arange(moments),
        "center": center if gaussian else np.full_like(center, np.nan),
        "mean": center,
        "covariance": covariance,
        "offset": center.round().astype(int),
        "weight": np.full((moments, heads), 0.25),
    }
    for place, name in enumerate(RESEMBLANCE_METRICS):
        arrays[name] = np.minimum(counts, place)
        arrays[f"chance_{name}"] = arrays[name].mean(axis=0)
    return arrays
