"""Pictures moved to a fraction of a cell that their content chooses, so that fractional shifts become whole ones."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from teka.checks import check_tensor
from teka.nn.alias_free import finer, map_axis
from teka.nn.polyphase import check_axes, largest_coset, take_coset


class SubpixelAlignment(nn.Module):
    """z[n] = x̂[n + ĉ/k]: the input at one of kⁿ fractions of a cell, which its content chooses.

    x̂ interpolates what x has below its Nyquist frequency. On a grid k times as fine a shift by τ/k is a whole one, and
    permutes and rolls the cosets x̂[n + c/k]. So with ĉ = argmax_c Σ_n (x̂[n + c/k] − mean)⁴ the z of a moved input is z
    moved by whole cells, and what whole shifts do not change after it no shift by multiples of 1/k changes either.
    (Squares would not do: by Parseval's theorem their sums are all the same.) Periodic axes only.

    Source: the choice of Chaman & Dokmanić 2021 on an interpolated grid; proof: docs/maths/polyphase.md.

    Args:
        factor: k of each axis, or one number for all.
        num_axes: Axes of the inputs, 1, 2 or 3.

    >>> import torch
    >>> from teka.audit import translate
    >>> from teka.nn.subpixel import SubpixelAlignment
    >>> align, picture = SubpixelAlignment(2), torch.rand(1, 1, 7, 9)
    >>> moved = align(translate(picture, (0.5, -1.5), mode="fourier"))
    >>> torch.allclose(align(picture).pow(3).sum(), moved.pow(3).sum(), rtol=1e-4)
    True
    """

    def __init__(self, factor: int = 2, *, num_axes: int = 2) -> None:
        super().__init__()
        self.factor = check_axes("factor", factor, num_axes)

    def forward(self, inputs: Float[Tensor, "batch channels *sides"]) -> Float[Tensor, "batch channels *sides"]:
        """The inputs, aligned; a ValueError for another number of axes."""
        check_tensor("inputs", inputs, "batch", "channels", *(("side",) * len(self.factor)))
        fine = inputs
        with torch.autocast(inputs.device.type, enabled=False):  # few digits would choose at random
            for axis, factor in enumerate(self.factor, 2):
                fine = map_axis(fine, finer(inputs.shape[axis], factor).to(inputs), axis)
        away = fine - fine.mean(dim=tuple(range(2, fine.ndim)), keepdim=True)
        return take_coset(fine, largest_coset(away.detach().square(), self.factor), self.factor)
