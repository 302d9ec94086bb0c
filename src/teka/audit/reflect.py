"""Moving by whole cells where the images go on as in a mirror."""

from collections.abc import Sequence

import torch
from jaxtyping import Shaped
from torch import Tensor


def reflect(
    images: Shaped[Tensor, "batch channels *sizes"], shift: Sequence[int]
) -> Shaped[Tensor, "batch channels *sizes"]:
    """Images moved by whole cells, of which those that enter mirror those inside about the centre of the edge cell.

    (T_s x)_i = x_{r(i − s)} along every axis, r(j) = (S − 1) − |(j mod 2 (S − 1)) − (S − 1)|: the edge cell is not
    repeated. What leaves is lost.

    Args:
        images: Images (B, C, *S).
        shift: One step s for each axis, in cells.

    Returns:
        New images (B, C, *S).

    Source: mode "reflect" of `numpy.pad` and `torch.nn.functional.pad`.
    """
    moved = images.clone()
    for axis, step in enumerate(shift, 2):
        side = images.shape[axis]
        last = side - 1
        if step and last:
            # Only the cells that enter are looked up one by one.
            start = 0 if step > 0 else side + step
            entering = torch.arange(start, start + abs(step), device=images.device)
            mirrored = last - ((entering - step).remainder(2 * last) - last).abs()
            strip = moved.index_select(axis, mirrored)
            moved = moved.roll(step, axis)
            moved.narrow(axis, start, abs(step)).copy_(strip)
    return moved
