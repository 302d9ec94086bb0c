from dataclasses import replace
from importlib import import_module

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex

from teka import Grid
from teka.functional import KERNELS, RELATIVES, FeatureKernel, JointSinusoidalBias
from teka.functional.backends.flex_attention import (
    attend_with_flex,
    can_use_flex,
    make_offset_table,
)
from teka.functional.kernels import make_content_kernel
from teka.functional.kernels.content_kernel import DenseAttentionInputs
from teka.functional.positions import Positions
from teka.functional.relative.relative_kernel import PositiveRelativeKernel
from tests.contracts.cases import (
    build_kernel,
    build_relative,
    draw_inputs,
    draw_mask,
    flex_reference,
    is_weighted_mean,
    relative_error,
    with_leaves,
)

# The joint form is part of the queries and keys before flex is called.
RELATIVE_NAMES = [
    name
    for name, kind in RELATIVES.items()
    if issubclass(kind, PositiveRelativeKernel) and not issubclass(kind, JointSinusoidalBias)
]
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4}


POSITIONS = {
    "line": Positions(Grid(13, spacing=0.5)),
    "image with prefix": Positions(Grid((3, 5)), num_prefix_tokens=2),
    "periodic": Positions(Grid((5, 3), periodic=(True, False))),
    "volume": Positions(Grid((2, 3, 2)), num_prefix_tokens=1),
    "finer keys": Positions(Grid((3, 2), spacing=2.0, origin=1.0), key=Positions(Grid((5, 3)))),
    "two to three": Positions(Grid(7, spacing=1.0), key=Positions(Grid(5, spacing=1.5))),
}


@pytest.fixture(autouse=True)
def allow_gradients_on_cpu(monkeypatch: pytest.MonkeyPatch):
    # torch raises an error for gradients on a CPU, which only its fused CPU kernel lacks.
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *tensors: None, raising=False)


@pytest.fixture
def use_flex_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace FlexAttention by a reference, because FlexAttention compiles in each call."""
    monkeypatch.setattr(
        import_module("teka.functional.backends.flex_attention"), "flex_attention", flex_reference
    )


def assert_equals_dense(
    kernel_name: str,
    relative_name: str,
    placement: Positions,
    *,
    dtype: torch.dtype = torch.float64,
    masked: bool = False,
    is_causal: bool = False,
) -> None:
    """Assert that values and gradients of `attend_with_flex` equal dense attention."""
    num_queries, num_keys = (
        placement.num_prefix_tokens + (s.num_queries_with_position or 0)
        for s in (placement, placement.key_positions)
    )
    relative = build_relative(
        relative_name,
        heads=3,
        dim=5,
        num_axes=placement.num_axes,
        kernel=kernel_name,
        max_distance=3,
    )
    assert relative is not None
    relative, leaves = with_leaves(relative, dtype)
    kernel = build_kernel(kernel_name, None, 5)
    query = draw_inputs(num_queries, seed=1, dtype=dtype)[0].requires_grad_()
    key, value = (
        tensor.requires_grad_() for tensor in draw_inputs(num_keys, seed=2, dtype=dtype)[1:]
    )
    mask = draw_mask(2, num_keys) if masked else None
    if isinstance(kernel, FeatureKernel) and not is_causal:
        kernel = kernel.with_statistics(query, key, scale=0.4, query_mask=None, key_mask=mask)
    placed = relative.adapt_to_positions(placement)
    assert isinstance(placed, PositiveRelativeKernel)
    assert can_use_flex(query, value, kernel)
    term = placed.make_flex_attention_bias(query, placement, scale=0.4)
    assert term is not None
    inputs = [query, key, value, *leaves.values()]
    results: list[list[Tensor]] = []
    pairs = DenseAttentionInputs(
        query, key, value, kernel, scale=0.4, key_mask=mask, is_causal=is_causal
    )
    for output in (attend_with_flex(pairs, term), placed.dense_attention(pairs, placement)):
        gradients = torch.autograd.grad(
            output.square().sum(), inputs, allow_unused=True, retain_graph=True
        )
        results.append(
            [output, *(torch.zeros(1) if gradient is None else gradient for gradient in gradients)]
        )
    assert (
        max(relative_error(flex, dense) for flex, dense in zip(*results, strict=True))
        <= TOLERANCES[dtype]
    )


@pytest.mark.parametrize("relative", RELATIVE_NAMES)
def test_softmax_with_every_relative_kernel_equals_dense(
    relative: str, request: pytest.FixtureRequest
):
    assert_equals_dense(
        "softmax", relative, list(POSITIONS.values())[RELATIVE_NAMES.index(relative) % 5]
    )
    request.getfixturevalue("use_flex_reference")
    for name, place in POSITIONS.items():
        if (relative, name) != ("table", "two to three"):  # a table needs grids with common cells
            assert_equals_dense("softmax", relative, place)


@pytest.mark.parametrize(
    "kernel", [name for name in KERNELS if name != "trigonometric" and is_weighted_mean(name)]
)
def test_every_nonnegative_kernel_equals_dense(kernel: str, request: pytest.FixtureRequest):
    if kernel not in ("softmax", "squared_relu", "positive"):
        request.getfixturevalue("use_flex_reference")
    assert_equals_dense(kernel, "quadratic", POSITIONS["image with prefix"], masked=True)


@pytest.mark.parametrize(
    ("kernel", "relative"),
    [("softmax", "fourier"), ("squared_relu", "fourier"), ("positive", "clipped")],
)
def test_causal_attention_equals_dense(kernel: str, relative: str):
    assert_equals_dense(kernel, relative, POSITIONS["line"], is_causal=True)


@pytest.mark.parametrize("kernel", ["softmax", "squared_relu", "clipped"])
def test_float32_is_within_its_tolerance(kernel: str, request: pytest.FixtureRequest):
    if kernel != "clipped":
        request.getfixturevalue("use_flex_reference")
    name, relative = ("softmax", kernel) if kernel == "clipped" else (kernel, "rotation")
    assert_equals_dense(
        name, relative, POSITIONS["image with prefix"], dtype=torch.float32, masked=True
    )


def test_causal_query_without_keys_gives_0():
    query, key, value = draw_inputs(13)
    mask = torch.ones(2, 13, dtype=torch.bool)
    mask[0, :3] = False
    relative = build_relative("quadratic", heads=3, dim=5, num_axes=1)
    assert isinstance(relative, PositiveRelativeKernel)
    term = relative.make_flex_attention_bias(query, POSITIONS["line"], scale=0.4)
    assert term is not None
    pairs = DenseAttentionInputs(
        query,
        key,
        value,
        make_content_kernel("softmax", 5),
        scale=0.4,
        key_mask=mask,
        is_causal=True,
    )
    output, expected = (
        attend_with_flex(pairs, term),
        relative.dense_attention(pairs, POSITIONS["line"]),
    )
    assert torch.equal(output[0, :, :3], torch.zeros(3, 3, 4, dtype=torch.float64))
    assert relative_error(output, expected) <= TOLERANCES[torch.float64]


def draw_points(num_tokens: int, seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 4 * torch.rand(*shape, num_tokens, 2, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("shape", [(), (2,)], ids=["shared", "per sample"])
def test_fourier_of_positions_without_a_grid_equals_dense(
    shape: tuple[int, ...], request: pytest.FixtureRequest
):
    query_positions = Positions(points=draw_points(11, 1, *shape))
    assert_equals_dense("softmax", "fourier", replace(query_positions, num_prefix_tokens=2))
    request.getfixturevalue("use_flex_reference")
    assert_equals_dense(
        "squared_relu",
        "fourier",
        replace(query_positions, key=Positions(points=draw_points(7, 2, *shape))),
        masked=True,
    )


def test_can_use_flex_is_false_for_unsupported_inputs():
    query, _, value = draw_inputs(6)
    softmax = make_content_kernel("softmax", 5)
    assert can_use_flex(query, value, softmax)
    assert not can_use_flex(query[:0], value[:0], softmax)
    assert not can_use_flex(query, value, make_content_kernel("trigonometric", 5))
    assert not can_use_flex(query, value.expand(-1, -1, -1, 4).repeat(1, 1, 1, 65), softmax)
    inside = []
    torch.func.vmap(lambda tensor: inside.append(can_use_flex(query, value, softmax)) or tensor)(
        query
    )
    assert inside == [False]


def test_flex_bias_is_none_without_a_small_table():
    query, _, _ = draw_inputs(6)
    same_grid = Positions(Grid((2, 3)))
    points, misaligned = (
        Positions(points=draw_points(6, 1)),
        replace(same_grid, key=Positions(Grid((2, 3), spacing=0.5**0.5))),
    )
    for name, found in (
        ("fourier", [True] * 3),
        ("quadratic", [True, False, False]),
        ("clipped", [True, False, False]),
    ):
        relative = build_relative(name, heads=3, dim=5, num_axes=2)
        assert isinstance(relative, PositiveRelativeKernel)
        terms = [
            relative.make_flex_attention_bias(query, place, scale=0.4)
            for place in (same_grid, points, misaligned)
        ]
        assert [term is not None for term in terms] == found


@given(
    sides=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    periodic=st.tuples(st.booleans(), st.booleans()),
    coarse=st.integers(1, 3),
)
@settings(max_examples=40, deadline=None)
def test_offset_table_has_the_offset_of_every_pair_of_cells(
    sides: tuple[int, int], periodic: tuple[bool, bool], coarse: int
):
    query = Grid(sides, periodic=periodic, origin=0.25)
    key = query if any(periodic) else Grid(sides[::-1], spacing=float(coarse))
    placement = Positions(query, key=Positions(key))
    like = torch.zeros((), dtype=torch.float64)
    table = make_offset_table(placement, like)
    assert table is not None
    offsets, query_code, key_code = table
    found = offsets[query_code[:, None] - key_code[None, :]]
    assert torch.allclose(found, placement.pairwise_offsets(like), atol=1e-12)
