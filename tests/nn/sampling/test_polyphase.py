"""Polyphase sampling."""

import itertools

import pytest
import torch
from torch import Tensor, nn

from teka.nn import PolyphaseDownsample, PolyphasePatchEmbedding, PolyphaseUpsample
from teka.nn.sampling.polyphase import split_polyphase

CASES = {"a signal": ((15,), 3), "a picture": ((8, 12), (2, 4)), "a volume": ((4, 6, 10), 2)}
SHIFTS = ((1, 1, 1), (5, -3, 2), (-7, 4, 9))


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def roll(tensor: Tensor, shift: tuple[int, ...]) -> Tensor:
    axes = tuple(range(2, tensor.ndim))
    return tensor.roll(shift[: len(axes)], axes)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("select", ["norm", "learned"])
def test_down_and_upsampling_is_equivariant_to_every_shift(case: str, select: str):
    sides, stride = CASES[case]
    torch.manual_seed(0)
    channels = 3 if select == "learned" else None
    for blur in (None, 3, 5):
        down = PolyphaseDownsample(
            stride, num_axes=len(sides), select=select, channels=channels, blur=blur
        )
        down, up = down.double().eval(), PolyphaseUpsample(stride, num_axes=len(sides), blur=blur)
        inputs = draw(4, 3, *sides)
        coarse, offset = down.forward_with_offset(inputs)
        assert len(set(offset.tolist())) > 1, "the samples of this test take the same coset"
        for shift in SHIFTS:
            moved, moved_offset = down.forward_with_offset(roll(inputs, shift))
            assert (moved.flatten(2).sum(2) - coarse.flatten(2).sum(2)).abs().max() < 1e-12, (
                blur,
                shift,
            )
            assert (
                up(moved, moved_offset) - roll(up(coarse, offset), shift)
            ).abs().max() < 1e-12, (blur, shift)


@pytest.mark.parametrize("case", CASES)
def test_patch_embedding_is_equivariant_to_every_shift(case: str):
    sides, _ = CASES[case]
    size = 3 if len(sides) == 1 else 2
    torch.manual_seed(0)
    embed = PolyphasePatchEmbedding(3, 5, size, num_axes=len(sides)).double()
    up = PolyphaseUpsample(size, num_axes=len(sides))
    inputs = draw(4, 3, *sides)
    tokens, offset = embed.forward_with_offset(inputs)
    start = tuple(-int(index) for index in torch.unravel_index(offset[0], (size,) * len(sides)))
    cells = (slice(None), *(slice(None, None, size),) * len(sides))
    assert torch.allclose(tokens[0], embed.project(roll(inputs, start))[0][cells])
    for shift in SHIFTS:
        moved = up(*embed.forward_with_offset(roll(inputs, shift)))
        assert (moved - roll(up(tokens, offset), shift)).abs().max() < 1e-12, shift


def test_a_fixed_stride_is_equivariant_to_its_multiples_only():
    down = PolyphaseDownsample(2, select="fixed")
    inputs = draw(2, 3, 8, 8)
    assert torch.equal(down(roll(inputs, (2, -4))), roll(down(inputs), (1, -2)))
    assert (down(roll(inputs, (1, 0))).sum() - down(inputs).sum()).abs() > 1e-3


def test_the_chosen_coset_is_the_one_with_the_largest_norm():
    inputs = draw(5, 3, 8, 12)
    coarse, offset = PolyphaseDownsample((2, 4)).forward_with_offset(inputs)
    cosets = split_polyphase(inputs, (2, 4))
    assert torch.equal(offset, cosets.square().flatten(2).sum(2).argmax(1))
    assert torch.equal(coarse, cosets[torch.arange(5), offset])


def test_ties_do_not_depend_on_the_position():
    points = torch.zeros(1, 1, 8, 8, dtype=torch.float64)
    for row, column, value in ((1, 2, 1.0), (3, 3, 2.0), (4, 5, 2.0), (6, 6, 1.0)):
        points[..., row, column] = value
    down, up = PolyphaseDownsample(2), PolyphaseUpsample(2)
    expected = up(*down.forward_with_offset(points))
    for shift in itertools.product(range(8), range(8)):
        assert torch.equal(
            up(*down.forward_with_offset(roll(points, shift))), roll(expected, shift)
        ), shift


def test_input_equal_to_its_shift_gives_equal_cells():
    stripes = draw(1, 2, 1, 3).repeat(1, 1, 6, 4)
    down = PolyphaseDownsample(2)
    totals = [down(roll(stripes, (0, step))).flatten(2).sort(2).values for step in range(12)]
    assert all(torch.equal(total, totals[0]) for total in totals)


def test_first_and_second_gradients():
    inputs = draw(3, 2, 4, 6).requires_grad_()
    down, up = PolyphaseDownsample(2), PolyphaseUpsample(2)
    coarse, offset = down.forward_with_offset(inputs)
    cells = coarse.detach().requires_grad_()
    for function, argument in ((down, inputs), (lambda cells: up(cells, offset), cells)):
        assert torch.autograd.gradcheck(
            function, (argument,), check_forward_ad=True, check_batched_grad=False
        )
        assert torch.autograd.gradgradcheck(
            lambda value, function=function: function(value) ** 2, (argument,)
        )


def test_a_learned_score_has_gradients():
    torch.manual_seed(0)
    down = PolyphaseDownsample(2, select="learned", channels=3)
    down(torch.randn(4, 3, 8, 8)).square().sum().backward()
    assert all(
        weight.grad is not None and weight.grad.abs().max() > 0
        for weight in down.parameters()
        if weight.ndim > 1
    )


def test_a_model_with_convolutions_is_exactly_equivariant():
    torch.manual_seed(0)
    down, up = PolyphaseDownsample(2, blur=3), PolyphaseUpsample(2, blur=3)
    first, second = (
        nn.Conv2d(3, 3, 3, padding=1, padding_mode="circular").double() for _ in range(2)
    )

    def model(inputs: Tensor) -> Tensor:
        coarse, offset = down.forward_with_offset(first(inputs).relu())
        return up(second(coarse).relu(), offset)

    inputs = draw(2, 3, 8, 6)
    assert (model(roll(inputs, (3, -1))) - roll(model(inputs), (3, -1))).abs().max() < 1e-12


def test_transforms_of_torch_func():
    down, up, inputs = PolyphaseDownsample(2), PolyphaseUpsample(2), draw(3, 1, 2, 4, 6)

    def energy(sample: Tensor) -> Tensor:
        return up(*down.forward_with_offset(sample)).pow(3).sum()

    batched = torch.func.vmap(torch.func.grad(energy))(inputs)
    separate = [torch.autograd.functional.jacobian(energy, sample) for sample in inputs]
    assert torch.equal(batched, torch.stack(separate))
    assert torch.func.jacrev(down)(inputs[0]).sum() == 2 * 2 * 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PolyphaseDownsample(0), "stride must be a whole number of at least 1.*got 0"),
        (lambda: PolyphaseDownsample((2, 2, 2)), "one for each of 2 axes"),
        (lambda: PolyphaseDownsample(2, num_axes=4), "num_axes must be 1, 2 or 3.*got 4"),
        (lambda: PolyphaseDownsample(2, select="largest"), "select must be one of.*got 'largest'"),
        (lambda: PolyphaseDownsample(2, select="learned"), "channels must be.*got None"),
        (lambda: PolyphaseDownsample(2, channels=3), "channels must be.*got 3"),
        (
            lambda: PolyphaseDownsample(2, blur=4),
            "blur must be None, an odd number of cells.*got 4",
        ),
        (lambda: PolyphaseDownsample(2, blur="ideal", periodic=False), "blur must be.*got 'ideal'"),
        (
            lambda: PolyphaseDownsample(2)(draw(1, 1, 7, 8)),
            r"inputs must have sides that are.*got shape \(1, 1, 7, 8\)",
        ),
        (lambda: PolyphasePatchEmbedding(3, 8, 0), "patch_size must be at least 1.*got 0"),
        (
            lambda: PolyphasePatchEmbedding(3, 8, 2, select="fixed"),
            "select must be one of.*got 'fixed'",
        ),
        (
            lambda: PolyphasePatchEmbedding(1, 8, 4)(draw(1, 1, 8, 6).float()),
            "multiples of stride = ",
        ),
        (
            lambda: PolyphaseUpsample(2)(draw(2, 1, 4, 4), torch.zeros(3).long()),
            "offset must have shape|offset must be",
        ),
        (
            lambda: PolyphaseUpsample(2)(draw(2, 1, 4, 4), torch.zeros(2)),
            "offset must be .*got torch.float32",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked_annotations")
def test_invalid_input_is_an_error_with_its_name(make, message: str):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("select", ["norm", "learned"])
@pytest.mark.parametrize("blur", [3, 5, 9, "ideal"])
def test_small_sides_are_equivariant_after_a_blur_with_equal_cosets(select: str, blur: int | str):
    torch.manual_seed(0)
    for stride, side in ((2, 2), (2, 4), (2, 8), (3, 3), (3, 6), (4, 4), (4, 8)):
        channels = 3 if select == "learned" else None
        down = (
            PolyphaseDownsample(stride, num_axes=1, select=select, channels=channels, blur=blur)
            .double()
            .eval()
        )
        up, inputs = PolyphaseUpsample(stride, num_axes=1), draw(6, 3, side)
        expected = up(*down.forward_with_offset(inputs))
        for shift in range(1, side):
            moved = up(*down.forward_with_offset(inputs.roll(shift, 2)))
            assert (moved - expected.roll(shift, 2)).abs().max() < 1e-12, (stride, side, shift)
