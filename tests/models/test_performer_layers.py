"""Stems, stages and dense heads of a Performer."""

from typing import Any

import pytest
import torch
from torch import Tensor

from teka.audit import translate
from teka.models import Performer
from teka.nn.sampling.filters import apply_low_pass

SIZES = {
    "signals": ((24,), (5,)),
    "images": ((16, 24), (5, -3)),
    "volumes": ((8, 8, 16), (1, 2, 3)),
}
SMALL: dict[str, Any] = {
    "dim": 16,
    "depth": 2,
    "heads": 2,
    "stem": "polyphase",
    "patch_size": 4,
    "pool": "mean",
}
EXACT: dict[str, dict[str, Any]] = {
    "a polyphase stem": SMALL,
    "patches from a chosen offset": SMALL | {"stem": "polyphase_patch"},
    "blur, residual blocks and a class token": SMALL
    | {"blur": 5, "stem_depth": (0, 1, 2), "pool": "class"},
    "ideal low passes and oversampled activations": SMALL | {"blur": "ideal", "stem_depth": 1},
    "learned offsets and two stages": SMALL
    | {"dim": (8, 16), "depth": (1, 2), "patch_size": 2, "select": "learned", "pool": "attention"},
    "a dense head over two stages": SMALL
    | {"dim": (8, 16), "patch_size": 2, "pool": "class", "head": "dense"},
    "attention between the grids of two stages and of a dense head": SMALL
    | {
        "dim": (8, 16),
        "patch_size": 2,
        "pool": "class",
        "head": "dense",
        "resampling": "attention",
    },
    "stages of single pixels": SMALL
    | {"dim": (8, 16, 12), "stem": "patch", "patch_size": 1, "pool": "class", "head": "dense"},
}


def largest_change(model: Performer, inputs: Tensor, shift: tuple[int, ...]) -> float:
    axes = tuple(range(2, inputs.ndim))
    before, after = model(inputs), model(inputs.roll(shift, axes))
    return (after - (before if before.ndim == 2 else before.roll(shift, axes))).abs().max().item()


def build(size: tuple[int, ...], *, periodic: bool = True, **options: Any) -> Performer:
    torch.manual_seed(0)
    return Performer(size, 3, 5, periodic=periodic, **options)


@pytest.mark.parametrize("kind", SIZES)
def test_whole_shifts_are_exact(kind: str):
    size, shift = SIZES[kind]
    inputs = torch.randn(2, 3, *size, dtype=torch.float64)
    for name, options in EXACT.items():
        model = build(size, **options).double().eval()
        assert largest_change(model, inputs, shift) < 1e-12, name
        if options.get("head") == "dense":
            assert model(inputs).shape == (2, 5, *size), name


@pytest.mark.parametrize("kind", SIZES)
def test_fractional_shifts_are_exact_with_subpixels(kind: str):
    size, whole = SIZES[kind]
    inputs = torch.randn(2, 3, *size, dtype=torch.float64)
    shift = tuple(step - 0.5 for step in whole)
    aligned, plain = (
        build(size, **SMALL, subpixels=subpixels).double().eval() for subpixels in (2, 1)
    )
    moved = translate(inputs, shift, mode="fourier")
    assert (aligned(moved) - aligned(inputs)).abs().max() < 1e-12
    assert (plain(moved) - plain(inputs)).abs().max() > 1e-3


def test_a_strided_stem_is_not_equivariant():
    size, shift = SIZES["images"]
    strided: dict[str, Any] = SMALL | {"stem": "strided"}
    model = build(size, **strided).double().eval()
    assert largest_change(model, torch.randn(2, 3, *size, dtype=torch.float64), shift) > 1e-3


def test_ideal_low_pass_filters_reduce_the_change_under_half_a_pixel():
    torch.manual_seed(3)
    smooth = apply_low_pass(torch.rand(4, 3, 16, 16, dtype=torch.float64), 5, (2, 2), True)
    changes = []
    for blur in (None, 5, "ideal"):
        model = build((16, 16), **SMALL | {"patch_size": 2, "blur": blur}).double().eval()
        before, after = model(smooth), model(translate(smooth, (0.5, -0.5), mode="fourier"))
        changes.append(((after - before).norm() / (before - before.mean(0)).norm()).item())
    assert changes[2] < changes[1] / 3 < changes[0] / 6


@pytest.mark.parametrize("name", EXACT)
def test_every_trainable_parameter_has_a_gradient(name: str):
    model = build((16, 8), **EXACT[name])
    model(torch.randn(3, 3, 16, 8)).square().sum().backward()
    assert not [
        parameter_name
        for parameter_name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.grad is None
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patch_size": 3}, "patch_size must be a power of 2 with stem='polyphase'.*got 3"),
        ({"subpixels": 2, "periodic": False}, "subpixels must be 1 without periodic=True.*got 2"),
        ({"subpixels": 2, "head": "dense", "pool": "class"}, "subpixels must be 1 without periodic.*got 2"),
        ({"subpixels": 0}, "subpixels must be at least 1.*got 0"),
        ({"select": "first"}, "select must be one of 'learned', 'norm'.*got 'first'"),
        ({"select": "learned", "stem": "strided"}, "select must be 'norm' with stem='strided'.*got 'learned'"),
        ({"blur": 3, "stem": "patch"}, "blur must be its default, got 3"),
        ({"stem_depth": (1, 1)}, r"stem_depth must be one number, or one for each of 3 levels.*got \(1, 1\)"),
        ({"stem_depth": 1, "stem": "convolution"}, "stem_depth must be 0, except with stem='polyphase'.*got 1"),
        ({"blur": 2}, "blur must be None, an odd number.*got 2"),
        ({"dim": (8, 16), "depth": (1, 1, 1)}, r"dim must be one number, or one for each of 3 stages.*got \(8, 16\)"),
        ({"dim": (8, 16), "pool": "class"}, "pool must be 'mean' or 'attention' with several stages.*got 'class'"),
        ({"dim": (8, 16, 32)}, r"image_size must be .* multiples of patch_size = 4 × 4 for 3 stages"),
        ({"head": "dense"}, "pool must be left out with head='dense'.*got 'mean'"),
        ({"head": "dense", "pool": "class", "stem": "patch"}, "patch_size must be 1 with head='dense'.*got 4"),
    ],
)  # fmt: skip
def test_invalid_option_is_an_error_with_its_name(options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        build((24, 24), **SMALL | options)
