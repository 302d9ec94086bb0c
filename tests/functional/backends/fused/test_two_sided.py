"""Features that are made block by block and again in the backward pass, with what positions make of them."""

from typing import Any

import pytest
import torch
from tests.contracts.cases import draw_inputs, relative_change
from torch import Tensor
from torch.autograd import grad

from teka import Grid
from teka.functional import Elu, FeatureKernel, Hyperbolic, Positive, Rotary, Taylor2, attention
from teka.functional import plan as plans
from teka.functional.backends.fused import parts, position_maps, two_sided
from teka.functional.backends.fused.two_sided import fused_linear
from teka.functional.kernels import make_kernel

GENERATOR = torch.Generator().manual_seed(0)
PLACES = torch.rand(2, 77, 2, generator=GENERATOR, dtype=torch.float64) * 30
PLACEMENTS: dict[str, dict[str, Any]] = {
    "a line": {"grid": Grid(77)},
    "a torus": {"grid": Grid((7, 11), periodic=True, spacing=0.5)},
    "a grid far from 0": {"grid": Grid((7, 11), origin=1e4)},
    "a torus after two tokens": {"grid": Grid((15, 5), periodic=True), "num_prefix_tokens": 2},
    "two grids in space": {
        "grid": Grid((7, 11, 1)),
        "key_grid": Grid((2, 3, 5), spacing=(3.0, 2.0, 1.0), origin=0.5),
    },
    "points": {"positions": PLACES[0]},
    "points of every sample": {"positions": PLACES},
}


@pytest.fixture(
    autouse=True,
    params=[16, 240, 1000],
    ids=["parts of a head", "heads of a sample", "all at once"],
)
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of few tokens and of many, with three heads and two samples of 77, and pieces of them, of half as many."""
    monkeypatch.setattr(two_sided, "BLOCK_TOKENS", request.param)
    monkeypatch.setattr(
        parts, "PIECE_FEATURES", request.param * 27
    )  # six features, each with nine waves
    monkeypatch.setattr(plans, "LEAST_IN_BLOCKS", dict.fromkeys(plans.LEAST_IN_BLOCKS, (0, 0)))


@pytest.mark.parametrize("normalizer", ["mixed", "lengths", "features"])
@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS)
def test_rotated_in_blocks_values_and_every_gradient_are_those_of_every_pair(
    placement: dict[str, Any], normalizer: str, monkeypatch: pytest.MonkeyPatch
):
    calls = []
    rotated = position_maps.RotationMap.parts
    monkeypatch.setattr(
        position_maps.RotationMap, "parts", lambda *given: calls.append(given) or rotated(*given)
    )
    query, key, value = draw_inputs(77, heads=3, dim=6)
    num_keys = placement["key_grid"].num_tokens if "key_grid" in placement else 77
    axes = placement["grid"].num_axes if "grid" in placement else 2
    frequency = torch.randn(3, 3, axes, generator=GENERATOR, dtype=torch.float64)
    leaves = [
        one.requires_grad_()
        for one in (query, key[:, :, :num_keys], value[:, :, :num_keys], frequency)
    ]
    mask = torch.rand(2, num_keys, generator=GENERATOR) > 0.3
    found = []
    for backend in ("dense", "linear"):
        relative = Rotary(leaves[3], normalizer)
        options = {
            "kernel": "squared_relu",
            "relative": relative,
            "key_mask": mask,
            "backend": backend,
        }
        output = attention(*leaves[:3], **options, **placement)
        cotangent = torch.cos(torch.arange(output.numel(), dtype=torch.float64)).reshape(
            output.shape
        )
        found.append([output, *grad((output * cotangent).sum(), leaves, materialize_grads=True)])
    assert calls
    for truth, fused in zip(*found, strict=True):
        assert relative_change(fused, truth) <= 1e-10


DRAWS = torch.randn(10, 6, generator=GENERATOR, dtype=torch.float64)


@pytest.mark.parametrize(
    "size", [1.0, 100.0], ids=["of unit size", "so large that features reach their floor"]
)
@pytest.mark.parametrize("relative", [None, "rotary", "fourier"])
@pytest.mark.parametrize(
    "kernel",
    [Positive(DRAWS), Hyperbolic(DRAWS[:5]), Elu(), Taylor2()],
    ids=lambda kernel: kernel.name,
)
def test_other_kernels_in_blocks_are_those_of_every_pair(
    kernel: FeatureKernel, relative: str | None, size: float, monkeypatch: pytest.MonkeyPatch
):
    calls = []
    monkeypatch.setattr(
        plans,
        "fused_linear",
        lambda *given, **named: calls.append(1) or fused_linear(*given, **named),
    )
    inputs = [one.requires_grad_() for one in draw_inputs(77, heads=2, dim=6, scale=size)]
    mask = torch.rand(2, 77, generator=GENERATOR) > 0.3
    mask[1, 16:] = False
    placement = (
        {}
        if relative is None
        else {"relative": relative, "grid": Grid((15, 5)), "num_prefix_tokens": 2}
    )
    found = []
    for backend in ("dense", "linear"):
        output = attention(*inputs, kernel=kernel, key_mask=mask, backend=backend, **placement)
        cotangent = torch.cos(torch.arange(output.numel(), dtype=torch.float64)).reshape(
            output.shape
        )
        found.append([output, *grad((output * cotangent).sum(), inputs)])
    assert calls
    for truth, fused in zip(*found, strict=True):
        assert relative_change(fused, truth) <= 1e-10


@pytest.mark.parametrize("is_causal", [False, True])
def test_positions_have_their_gradient(is_causal: bool):
    inputs, found = draw_inputs(77, heads=2, dim=6), []
    options: dict[str, Any] = {"kernel": "relu", "relative": "rotary", "is_causal": is_causal}
    for backend in ("dense", "linear"):
        places = PLACES[0].clone().requires_grad_()
        output = attention(*inputs, **options, positions=places, backend=backend)
        found += grad(output.sin().sum(), places)
    assert relative_change(found[1], found[0]) <= 1e-10


@pytest.mark.parametrize(
    ("kernel", "is_causal"), [("relu", False), ("relu", True), ("positive", False), ("elu", False)]
)
def test_under_autocast_gradients_are_those_without(kernel: str, is_causal: bool):
    found = []
    for is_cast in (False, True):
        inputs = [
            one.requires_grad_() for one in draw_inputs(77, heads=2, dim=6, dtype=torch.float32)
        ]
        with torch.autocast("cpu", torch.bfloat16, enabled=is_cast):
            attention(
                *inputs, kernel=kernel, is_causal=is_causal, backend="linear"
            ).square().sum().backward()
        found.append([one.grad for one in inputs])
    for cast, plain in zip(*found, strict=True):
        assert relative_change(cast, plain) <= 1e-5


@pytest.mark.parametrize("relative", ["rotary", "fourier"])
def test_gradients_can_be_differentiated_again(relative: str):
    query, key, value = (one.requires_grad_() for one in draw_inputs(9, heads=1, dim=4))

    def second(backend: str) -> tuple[Tensor, ...]:
        options = {
            "kernel": "squared_relu",
            "relative": relative,
            "grid": Grid((3, 3)),
            "backend": backend,
        }
        output = attention(query, key, value, **options)
        first = grad(output.square().sum(), (query, key, value), create_graph=True)
        return grad(torch.stack([one.square().sum() for one in first]).sum(), (query, key, value))

    for fused, truth in zip(second("linear"), second("dense"), strict=True):
        assert relative_change(fused, truth) <= 1e-9


@pytest.mark.parametrize(
    ("kind", "maker"),
    [(Elu, "key_features"), (Taylor2, "query_features"), (Positive, "query_exponent")],
)
def test_a_subclass_that_makes_features_in_another_way_has_them(
    kind: type[FeatureKernel], maker: str
):
    made = getattr(kind, maker)

    def others(self, *given: Tensor, **options: Any) -> Tensor:
        return made(self, *given, **options).square()

    kernel = make_kernel(kind.name, 5)
    assert isinstance(kernel, kind)
    other = type("Other", (kind,), {maker: others})(**vars(kernel))
    assert kernel.is_fused
    assert not other.is_fused
    query, key, value = draw_inputs(33, heads=2)
    weights = other.query_features(query, scale=0.4) @ other.key_features(key, scale=0.4).mT
    expected = weights / weights.sum(dim=-1, keepdim=True) @ value
    assert (
        relative_change(
            attention(query, key, value, kernel=other, backend="linear", scale=0.4), expected
        )
        <= 1e-12
    )
