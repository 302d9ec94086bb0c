"""Sampling that moves with the content: polyphase, blurred and alias-free."""

import math
from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.functional import gumbel_softmax, pad

from teka._compat import as_recorded, by_hand, precise
from teka.checks import (
    WHOLE,
    check_flags,
    check_name,
    check_sizes,
    check_stride,
    check_tensor,
    check_tensor_sizes,
    is_whole,
)
from teka.errors import wrong_shape, wrong_value
from teka.nn.additions import CONVOLUTION_MODULES, CONVOLUTIONS
from teka.nn.alias_free import at_least_float32, blurred, check_blur

SELECTIONS = ("norm", "learned", "fixed")
LEARNED_WIDTH = 16  # hidden channels of a learned score
COUNT_BITS = 62  # of the whole numbers in which norms are summed
CHOICE_BLUR = 5  # cells of the binomial filter before norms are compared, where tokens are made by an ideal one
GOLDEN = (math.sqrt(5) - 1) / 2


class PolyphaseDownsample(nn.Module):
    """y[n] = x[s·n + ĉ]: every s-th cell of each axis, from an offset ĉ that the content chooses.

    The cosets x_c[n] = x[s·n + c], c ∈ {0 … s−1}ⁿ, of a shifted input are those of the input, each rolled, in another
    order. With "norm" ĉ = argmax_c ‖x_c‖², with "learned" the argmax of the mean of a small convolutional network over
    x_c: both are the same for a rolled coset, so that y(T_τ x) = T_τ' y(x) with τ' = (τ + c − c')/s whole. That is
    exact where every axis is periodic and s divides its side. At the edges of a bounded canvas content comes and goes,
    and another offset may win; "fixed" is an ordinary stride, which keeps shifts by multiples of s alone.

    Norms are summed in whole numbers, so that no order of summation breaks a tie. A tie falls to the coset with the
    largest Σ_n e[n]² Σ_t w_t e[n + t], with e = Σ x² over channels and weights w_t of which no two are the same, which
    tells a picture from its mirror image. For an input that is the same after a shift no rule can move with the
    content; there the cosets are equal up to a roll.
    The gradient goes to the chosen cells; the scores of "learned" are trained through straight-through Gumbel softmax.

    Source: Chaman & Dokmanić 2021 ("norm"); Rojas-Gomez et al. 2022 ("learned"); Zhang 2019 (blur; with "fixed" it is
    blur pooling); Michaeli et al. 2023 (blur="ideal"). Proof: docs/maths/polyphase.md.

    Args:
        stride: s of each axis, or one number for all.
        num_axes: Axes of the inputs, 1, 2 or 3.
        select: "norm", "learned" or "fixed".
        channels: Channels of the inputs, for "learned".
        blur: Before sampling: None, a binomial filter of an odd number of cells, or "ideal", which leaves what
            lies below half of the new Nyquist frequency; "norm" then chooses after a binomial filter. "learned"
            always chooses before the blur.
        periodic: Whether filters go on at the other side, or meet zeros at the edge.

    >>> import torch
    >>> from teka.nn import PolyphaseDownsample
    >>> picture = torch.randn(1, 3, 8, 8)
    >>> sample = PolyphaseDownsample(2)
    >>> kept, of_moved = (sample(one).flatten().sort().values for one in (picture, picture.roll((5, 3), (2, 3))))
    >>> torch.equal(kept, of_moved)
    True
    """

    def __init__(
        self,
        stride: int | Sequence[int],
        *,
        num_axes: int = 2,
        select: str = "norm",
        channels: int | None = None,
        blur: int | str | None = None,
        periodic: bool = True,
    ) -> None:
        super().__init__()
        check_name("select", select, SELECTIONS)
        check_flags({"periodic": periodic})
        self.stride = check_axes("stride", stride, num_axes)
        self.select, self.blur, self.periodic = select, check_blur(blur, periodic), periodic
        if (channels is None) == (select == "learned"):
            raise wrong_value(
                "channels", channels, "the inputs' channels with select='learned', else None"
            )
        check_sizes({"channels": channels}, or_none=True)
        self.score = None if channels is None else _Score(channels, num_axes)

    def forward(
        self, inputs: Float[Tensor, "batch channels *sides"]
    ) -> Float[Tensor, "batch channels *coarse"]:
        """The chosen coset."""
        return self.sample(inputs)[0]

    def sample(
        self,
        inputs: Float[Tensor, "batch channels *sides"],
        offset: Int[Tensor, "batch"] | None = None,
    ) -> tuple[Float[Tensor, "batch channels *coarse"], Int[Tensor, "batch"]]:
        """The coset and its number, for `PolyphaseUpsample`; a ValueError for sides it does not divide.

        Maps that are added later must be of one offset: that which another branch has chosen can be given.
        """
        self.check(inputs)
        # An ideal filter leaves half of the new band, so that what squares make of it does not fold down either.
        passed = [2 * step if self.blur == "ideal" and step > 1 else step for step in self.stride]
        filtered = blurred(inputs, self.blur, passed, self.periodic)
        if offset is not None:
            check_tensor("offset", offset, inputs.shape[0], dtypes=WHOLE)
            return take_coset(filtered, offset, self.stride), offset
        if self.select == "fixed":
            chosen = inputs.new_zeros(inputs.shape[0], dtype=torch.long)
        elif self.score is None:
            # After an ideal filter all cosets have the same norm, and so have they along a side of two cells after a
            # binomial one: the choice would be left to rounding.
            blur = CHOICE_BLUR if self.blur == "ideal" else self.blur
            steps = [
                step if side > 2 else 1
                for side, step in zip(inputs.shape[2:], self.stride, strict=True)
            ]
            chosen = largest_coset(
                blurred(inputs, blur, steps, self.periodic).detach(), self.stride
            )
        else:
            # Scores see the inputs before the blur, after which a small grid has cosets that differ by rounding alone.
            scores = self.score(split_cosets(inputs, self.stride))
            if self.training:
                hard = gumbel_softmax(scores, hard=True)
                return torch.einsum(
                    "bk,bk...->b...", hard, split_cosets(filtered, self.stride)
                ), hard.argmax(1)
            chosen = scores.argmax(1)
        return take_coset(filtered, chosen, self.stride), chosen

    def check(self, inputs: Tensor) -> None:
        """Check that inputs have as many axes as the stride, which divides them."""
        check_tensor("inputs", inputs, "batch", "channels", *(("side",) * len(self.stride)))
        if any(side % step for side, step in zip(inputs.shape[2:], self.stride, strict=True)):
            raise wrong_shape(
                "inputs", inputs.shape, f"sides that are multiples of stride = {self.stride}"
            )

    def extra_repr(self) -> str:
        return f"stride={self.stride}, select={self.select!r}, blur={self.blur!r}, periodic={self.periodic}"


class PolyphaseUpsample(nn.Module):
    """x[s·n + ĉ] = y[n], and 0 elsewhere: cells go back to where `PolyphaseDownsample` took them.

    With it what is computed on the coarse grid is exactly equivariant to every whole shift of the fine one:
    up(f(y(T_τ x)), ĉ(T_τ x)) = T_τ up(f(y(x)), ĉ(x)) for every f that is equivariant on the coarse grid.

    Source: Chaman & Dokmanić 2021 (arXiv 2105.04040).

    >>> import torch
    >>> from teka.nn import PolyphaseDownsample, PolyphaseUpsample
    >>> cells, offset = PolyphaseDownsample(2, num_axes=1).sample(torch.tensor([[[1.0, 7.0, 2.0, 8.0]]]))
    >>> PolyphaseUpsample(2, num_axes=1)(cells, offset)
    tensor([[[0., 7., 0., 8.]]])

    Args:
        stride: As of the `PolyphaseDownsample`.
        num_axes: Axes of the inputs, 1, 2 or 3.
        blur: A filter that spreads the cells, as in `PolyphaseDownsample`; None leaves zeros between them.
        periodic: Whether the filter goes on at the other side.
    """

    def __init__(
        self,
        stride: int | Sequence[int],
        *,
        num_axes: int = 2,
        blur: int | str | None = None,
        periodic: bool = True,
    ) -> None:
        super().__init__()
        self.stride = check_axes("stride", stride, num_axes)
        self.blur, self.periodic = check_blur(blur, periodic), periodic

    def forward(
        self, inputs: Float[Tensor, "batch channels *coarse"], offset: Int[Tensor, "batch"]
    ) -> Float[Tensor, "batch channels *sides"]:
        """The cells of the coset of each sample's number; a ValueError for another number of axes or of samples."""
        check_tensor("inputs", inputs, "batch", "channels", *(("side",) * len(self.stride)))
        check_tensor("offset", offset, inputs.shape[0], dtypes=WHOLE)
        cells = put_coset(inputs, offset, self.stride)
        if self.blur is None:
            return cells
        return math.prod(self.stride) * blurred(cells, self.blur, self.stride, self.periodic)

    def extra_repr(self) -> str:
        return f"stride={self.stride}, blur={self.blur!r}, periodic={self.periodic}"


class PolyphasePatchEmbedding(nn.Module):
    """z[n] = W x[p·n + ĉ + {0 … p − 1}ⁿ] + b: patches of side p, from an offset ĉ that the content chooses.

    W x is computed at every cell, pⁿ times the work of patches from one offset, and `PolyphaseDownsample` of stride p
    keeps one coset of it. So the tokens move with the content by every whole shift of a torus, not by multiples of p
    alone.

    Source: Rojas-Gomez et al. 2023 (arXiv 2305.16316), adaptive tokenization and patch merging.

    Args:
        in_channels: Channels of the inputs.
        dim: Size of a token.
        patch_size: p, cells along each axis.
        num_axes: Axes of the inputs, 1, 2 or 3.
        select: "norm" or "learned", as of `PolyphaseDownsample`.
        blur: The low pass before the choice, as of `PolyphaseDownsample`.
        periodic: Whether a patch goes on at the other side, or meets zeros at the edge.

    >>> import torch
    >>> from teka.nn import PolyphasePatchEmbedding
    >>> embed, picture = PolyphasePatchEmbedding(3, 16, 4), torch.randn(1, 3, 8, 8)
    >>> tokens, moved = embed(picture).flatten(2), embed(picture.roll(1, 3)).flatten(2)
    >>> tuple(tokens.shape), torch.allclose(tokens.mean(2), moved.mean(2), atol=1e-6)
    ((1, 16, 4), True)
    """

    def __init__(
        self,
        in_channels: int,
        dim: int,
        patch_size: int,
        *,
        num_axes: int = 2,
        select: str = "norm",
        blur: int | str | None = None,
        periodic: bool = True,
    ) -> None:
        super().__init__()
        check_sizes({"in_channels": in_channels, "dim": dim, "patch_size": patch_size})
        check_name("select", select, ("norm", "learned"))
        channels = dim if select == "learned" else None
        self.sampling = PolyphaseDownsample(
            patch_size,
            num_axes=num_axes,
            select=select,
            channels=channels,
            blur=blur,
            periodic=periodic,
        )
        sizes = {"in_channels": in_channels, "dim": dim, "patch_size": patch_size}
        check_tensor_sizes(sizes, in_channels * dim * patch_size**num_axes)
        self.project = CONVOLUTION_MODULES[num_axes](in_channels, dim, patch_size)

    def forward(
        self, inputs: Float[Tensor, "batch channels *sides"]
    ) -> Float[Tensor, "batch dim *coarse"]:
        """The tokens on their grid; a ValueError as of `PolyphaseDownsample.sample`."""
        return self.sample(inputs)[0]

    def sample(
        self, inputs: Float[Tensor, "batch channels *sides"]
    ) -> tuple[Float[Tensor, "batch dim *coarse"], Int[Tensor, "batch"]]:
        """The tokens, and the number of the offset at which their patches begin."""
        self.sampling.check(inputs)
        around = (0, self.project.kernel_size[0] - 1) * (inputs.ndim - 2)
        mode = "circular" if self.sampling.periodic else "constant"
        return self.sampling.sample(self.project(pad(inputs, around, mode=mode)))


def split_cosets(
    inputs: Float[Tensor, "batch channels *sides"], stride: Sequence[int]
) -> Float[Tensor, "batch cosets channels *coarse"]:
    """x_c[n] = x[s·n + c] for all c in row-major order, a view as long as memory allows."""
    return _by_coset(inputs, stride).flatten(1, len(stride))


class _Coset(Function):
    """The cells of one coset of each sample; transposed, and so in the backward pass, these put back among zeros."""

    generate_vmap_rule = True

    @staticmethod
    def forward(cells, offset, stride, transposed):
        if transposed:
            return as_recorded(_among_zeros)(cells, offset, stride)
        return _by_coset(cells, stride)[_coset(offset, stride)].contiguous()

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, offset, ctx.stride, ctx.transposed = inputs
        ctx.save_for_backward(offset)

    @staticmethod
    @by_hand
    def backward(ctx, *grad_outputs):
        (offset,) = ctx.saved_tensors
        return _map_coset(grad_outputs[0], offset, ctx.stride, not ctx.transposed), None, None, None


class _DualCoset(_Coset):
    """The same with a forward derivative, which torch.compile does not take."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        _Coset.setup_context(ctx, inputs, output)
        ctx.save_for_forward(inputs[1])

    @staticmethod
    def jvp(ctx, *grad_inputs):
        (offset,) = ctx.saved_tensors
        return _map_coset(grad_inputs[0], offset, ctx.stride, ctx.transposed)


def take_coset(inputs: Tensor, offset: Tensor, stride: tuple[int, ...]) -> Tensor:
    """x_c of each sample's own number c."""
    return _map_coset(inputs, offset, stride, False)


def put_coset(cells: Tensor, offset: Tensor, stride: tuple[int, ...]) -> Tensor:
    """The cells of x_c back among zeros: the transpose of `take_coset`."""
    return _map_coset(cells, offset, stride, True)


def _map_coset(inputs: Tensor, offset: Tensor, stride: tuple[int, ...], transposed: bool) -> Tensor:
    kind = _Coset if torch.compiler.is_compiling() else _DualCoset
    return cast(Tensor, kind.apply(inputs, offset, stride, transposed))


def _among_zeros(cells: Tensor, offset: Tensor, stride: tuple[int, ...]) -> Tensor:
    result = cells.new_zeros(
        *cells.shape[:2], *(s * step for s, step in zip(cells.shape[2:], stride, strict=True))
    )
    _by_coset(result, stride)[_coset(offset, stride)] = cells
    return result


def _by_coset(inputs: Tensor, stride: Sequence[int]) -> Tensor:
    """A view of shape (B, *stride, C, *coarse)."""
    axes = range(len(stride))
    sizes = [
        size
        for side, step in zip(inputs.shape[2:], stride, strict=True)
        for size in (side // step, step)
    ]
    order = [0, *(3 + 2 * axis for axis in axes), 1, *(2 + 2 * axis for axis in axes)]
    return inputs.reshape(*inputs.shape[:2], *sizes).permute(order)


def _coset(offset: Tensor, stride: Sequence[int]) -> tuple[Tensor, ...]:
    """The index into `_by_coset` of each sample's coset."""
    return torch.arange(offset.shape[0], device=offset.device), *torch.unravel_index(
        offset.long(), tuple(stride)
    )


def largest_coset(inputs: Tensor, stride: Sequence[int]) -> Int[Tensor, "batch"]:
    """Number of the coset with the largest norm of each sample, the same whatever the order of cosets and cells."""
    energy = precise(at_least_float32(inputs).square().sum(1))
    most = energy.flatten(1).amax(1).clamp_min(torch.finfo(energy.dtype).tiny)
    energy = energy / most.view(-1, *(1,) * len(stride))
    # Σ_t w_t e[n + t] over all cells of the torus, by lags of 1, 2, 4 …: no two weights are the same.
    around, share = energy, 0.5
    for axis, side in enumerate(inputs.shape[2:], 1):
        for step in range(int(side - 1).bit_length()):
            around = (1 - share) * around + share * around.roll(-(2**step), axis)
            share *= GOLDEN
    scores = split_cosets(torch.stack([energy, energy.square() * around], 1), stride).flatten(3)
    # No sum of so many whole numbers is too large for 64 bits, whatever the order in which they are added.
    unit = 2.0 ** (COUNT_BITS - math.ceil(math.log2(int(scores.shape[3]))))
    norm, skew = (scores * unit).round().long().sum(3).unbind(2)
    return skew.masked_fill(norm < norm.amax(1, keepdim=True), -1).argmax(1)


class _Score(nn.Module):
    """One number of each coset: the mean over its cells of a network of two small convolutions."""

    def __init__(self, channels: int, num_axes: int) -> None:
        super().__init__()
        check_tensor_sizes({"channels": channels}, channels * LEARNED_WIDTH * 3**num_axes)
        convolution = CONVOLUTION_MODULES[num_axes]
        self.layers = nn.Sequential(
            convolution(channels, LEARNED_WIDTH, 3, padding=1, padding_mode="circular"),
            nn.ReLU(),
            convolution(LEARNED_WIDTH, 1, 1),
        )

    def forward(
        self, cosets: Float[Tensor, "batch cosets channels *coarse"]
    ) -> Float[Tensor, "batch cosets"]:
        return self.layers(cosets.flatten(0, 1)).flatten(1).mean(1).view(cosets.shape[:2])


def check_axes(argument: str, steps: int | Sequence[int], num_axes: int) -> tuple[int, ...]:
    """Whole numbers of at least 1, one for each of 1 to 3 axes; one number is that of all."""
    if not is_whole(num_axes) or num_axes not in CONVOLUTIONS:
        raise wrong_value("num_axes", num_axes, "1, 2 or 3")
    return check_stride(steps, num_axes, argument)
