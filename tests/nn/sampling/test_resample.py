"""Attention between two grids, and alignment to a fraction of a cell."""

import itertools

import pytest
import torch
from torch import Tensor

from teka.audit import translate
from teka.nn import AttentionDownsample, AttentionOptions, AttentionUpsample, PolyphaseDownsample
from teka.nn.sampling import SubpixelAlignment

SIDES = ((13,), (7, 8), (4, 5, 3))


def draw(*sides: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(sides))
    return torch.randn(2, 3, *sides, generator=generator, dtype=torch.float64)


def invariants(pictures: Tensor) -> Tensor:
    """Return statistics that depend on fractional shifts, but not on whole shifts."""
    axes = tuple(range(2, pictures.ndim))
    neighbors = pictures.roll(1, axes[-1])
    return torch.stack([pictures.pow(3).mean(axes), (pictures.square() * neighbors).mean(axes)])


@pytest.mark.parametrize("factor", [2, 3])
@pytest.mark.parametrize("sides", SIDES, ids=str)
def test_aligned_inputs_are_invariant_to_fractional_shifts(sides: tuple[int, ...], factor: int):
    pictures, align = draw(*sides), SubpixelAlignment(factor, num_axes=len(sides))
    expected, unaligned = invariants(align(pictures)), invariants(pictures)
    for steps in itertools.islice(itertools.product(range(-1, factor + 1), repeat=len(sides)), 40):
        shift = tuple(step / factor for step in steps)
        moved = translate(pictures, shift, mode="fourier")
        assert (invariants(align(moved)) - expected).abs().max() <= 1e-12, shift
        if any(step % factor for step in steps):
            assert (invariants(moved) - unaligned).abs().max() > 1e-4, shift


def test_the_aligned_output_of_a_shifted_input_is_rolled():
    pictures, align = draw(7, 9)[:1], SubpixelAlignment(2)
    original, moved = align(pictures), align(translate(pictures, (2.5, -0.5), mode="fourier"))
    rolls = [original.roll(steps, (2, 3)) for steps in itertools.product(range(7), range(9))]
    assert min(float((moved - roll).abs().max()) for roll in rolls) <= 1e-12


def test_each_sample_has_its_own_fraction():
    pictures = draw(7, 9)
    aligned = SubpixelAlignment(2)(pictures)
    shifted = [
        translate(pictures, (-down / 2, -right / 2), mode="fourier")
        for down in (0, 1)
        for right in (0, 1)
    ]
    for sample in (0, 1):
        differences = [(picture - aligned)[sample].abs().max() for picture in shifted]
        assert sum(difference <= 1e-12 for difference in differences) == 1
    assert (SubpixelAlignment(2)(pictures[1:]) - aligned[1:]).abs().max() <= 1e-12


def test_gradients_of_an_alignment():
    pictures = draw(5, 7)[:1].requires_grad_()
    assert torch.autograd.gradcheck(SubpixelAlignment(2), pictures)


def test_factor_1_only_drops_the_nyquist_frequency():
    odd, even = draw(7, 9), draw(4, 6)
    align = SubpixelAlignment(1)
    assert (align(odd) - odd).abs().max() <= 1e-12
    assert (align(align(even)) - align(even)).abs().max() <= 1e-12


def test_autocast_does_not_change_the_choice():
    pictures = draw(8, 6).float()
    expected = SubpixelAlignment(4)(pictures)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(SubpixelAlignment(4)(pictures), expected)


@pytest.mark.parametrize("factor", [0, 1.5, (2, 2, 2), True])
def test_a_bad_factor_is_an_error(factor, unchecked_annotations: None):
    with pytest.raises(
        ValueError, match=r"factor must be a whole number of at least 1, or one for each of 2"
    ):
        SubpixelAlignment(factor)


def test_another_number_of_axes_is_an_error(unchecked_annotations: None):
    with pytest.raises(
        ValueError, match=r"inputs must have shape \(batch, channels, side, side\).*got \(2, 3, 7\)"
    ):
        SubpixelAlignment(2)(torch.zeros(2, 3, 7))


@pytest.mark.parametrize(
    ("argument", "changed", "message"),
    [
        (0, torch.zeros(2, 5, 2), r"inputs must have shape \(batch, 4, side\).*got \(2, 5, 2\)"),
        (1, torch.tensor([0]), r"offset must have shape \(2,\).*got \(1,\)"),
        (1, torch.tensor([0.0, 1.0]), "offset must be of an integer dtype.*got torch.float32"),
        (1, torch.tensor([0, 2]), "offset must be from 0 to 1.*got 2"),
        (2, torch.zeros(2, 3, 5), r"fine must have shape \(2, 3, 4\).*got \(2, 3, 5\)"),
    ],
)
def test_bad_inputs_of_an_upsampling_are_errors(
    argument: int, changed: Tensor, message: str, unchecked_annotations: None
):
    inputs = [torch.zeros(2, 4, 2), torch.tensor([0, 1]), torch.zeros(2, 3, 4)]
    inputs[argument] = changed
    with pytest.raises(ValueError, match=message):
        AttentionUpsample(4, 3, 1, stride=2, num_axes=1)(*inputs)


def test_cells_with_other_channels_are_an_error(unchecked_annotations: None):
    down = AttentionDownsample(3, 4, 2, sampling=PolyphaseDownsample(2, num_axes=1))
    with pytest.raises(
        ValueError, match=r"cells must have shape \(batch, 3, side\).*got \(2, 4, 6\)"
    ):
        down(torch.zeros(2, 4, 6))


@pytest.mark.parametrize(
    "options",
    [None, AttentionOptions(kernel="softmax", relative="table")],
    ids=["the default", "softmax × table"],
)
def test_attention_down_and_upsampling_is_equivariant_to_every_shift(
    options: AttentionOptions | None,
):
    torch.manual_seed(0)
    sampling = PolyphaseDownsample(2, num_axes=3)
    down = AttentionDownsample(3, 6, 2, sampling=sampling, options=options).double()
    up = AttentionUpsample(6, 3, 1, stride=2, num_axes=3, options=options).double()
    volumes, axes = draw(4, 2, 6), (2, 3, 4)
    coarse, offset = down(volumes)
    assert coarse.shape == (2, 6, 2, 1, 3)
    offsets = torch.cat([down(volumes.roll(step, 4))[1] for step in range(2)])
    assert len(offsets.unique()) > 1
    for shift in itertools.product((0, 1), (0, 1), (0, 3)):
        moved = volumes.roll(shift, axes)
        for fine, moved_fine in ((None, None), (volumes, moved)):
            expected = up(coarse, offset, fine).roll(shift, axes)
            assert (up(*down(moved), moved_fine) - expected).abs().max() <= 1e-12, shift


def test_attention_downsampling_is_attention_between_the_positions_of_the_cells():
    torch.manual_seed(0)
    sampling = PolyphaseDownsample(2, num_axes=1, periodic=False)
    down = AttentionDownsample(
        3, 4, 2, sampling=sampling, options=AttentionOptions(relative="fourier")
    ).double()
    signals = draw(10)
    coarse, offset = down(signals)
    layer = down.attend
    positions = torch.arange(10.0, dtype=torch.float64)[:, None]
    for signal, cells, first in zip(signals, coarse, offset.tolist(), strict=True):
        query = down.query(signal[:, first::2].mT)
        attended = layer.attention(
            layer.norm(query)[None],
            positions=positions[first::2],
            context=layer.context_norm(signal.mT[None]),
            context_positions=positions,
        )
        assert (cells.mT - query - attended[0]).abs().max() <= 1e-12
