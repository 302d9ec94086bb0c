"""What rotary features promise with a denominator of lengths: all that they do with one of features, and a bound."""

import copy
import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contracts.cases import (
    build_kernel,
    draw_inputs,
    draw_mask,
    explicit_attention,
    relative_change,
    roll_tokens,
    with_leaves,
)
from torch import Generator, Tensor

from teka import Grid, diagnose, explain
from teka.functional import Kernel, Rotary, SquaredRelu, attention, decode
from teka.functional.placement import Placement, Sites
from teka.nn import Attention
from teka.nn import Rotary as RotaryModule

TOLERANCE = 1e-10
SCALE = 0.4
HEADS, DIM = 3, 5
KERNELS = ("squared_relu", "positive", "elu", "trigonometric")
BACKENDS = ("dense", "linear")


def build(kernel: str | Kernel, num_axes: int, normalizer: str = "lengths") -> Rotary:
    """Two turned pairs, so that some features of every kernel are not turned."""
    frequency = torch.randn(HEADS, 2, num_axes, generator=Generator().manual_seed(1), dtype=torch.float64)
    return Rotary(frequency, normalizer)


def with_gradients(output: Tensor, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    """The output, and the gradient of every leaf of the output times fixed numbers."""
    cotangent = torch.cos(torch.arange(output.numel(), dtype=torch.float64)).reshape(output.shape)
    gradients = torch.autograd.grad((output * cotangent).sum(), list(leaves.values()))
    return {"output": output.detach(), **dict(zip(leaves, gradients, strict=True))}


def leaves_of(num_tokens: int, relative: Rotary) -> tuple[Rotary, dict[str, Tensor]]:
    inputs = draw_inputs(num_tokens, heads=HEADS, dim=DIM)
    named = zip(("query", "key", "value"), inputs, strict=True)
    placed, more = with_leaves(relative)
    assert isinstance(placed, Rotary)
    return placed, {**{name: tensor.requires_grad_() for name, tensor in named}, **more}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, one in expected.items():
        assert relative_change(found[name], one) <= TOLERANCE, name


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("grid", "num_prefix_tokens", "masked"),
    [
        pytest.param(Grid(11), 0, False, id="line"),
        pytest.param(Grid((3, 5)), 2, True, id="plane with a prefix and dropped keys"),
        pytest.param(Grid((3, 5), periodic=True), 1, False, id="torus with a prefix"),
    ],
)
@pytest.mark.parametrize("kernel", KERNELS)
def test_values_and_every_gradient_are_those_of_the_equation(
    kernel: str, grid: Grid, num_prefix_tokens: int, masked: bool, backend: str
):
    num_tokens = num_prefix_tokens + grid.num_tokens
    relative, leaves = leaves_of(num_tokens, build(kernel, grid.num_axes))
    inputs, built = list(leaves.values())[:3], build_kernel(kernel, None, DIM)
    mask = draw_mask(2, num_tokens) if masked else None
    output = attention(
        *inputs,
        kernel=built,
        relative=relative,
        grid=grid,
        key_mask=mask,
        scale=SCALE,
        backend=backend,
        num_prefix_tokens=num_prefix_tokens,
    )
    placement = Placement(Sites(grid), Sites(grid), num_prefix_tokens)
    keep = None if mask is None else mask[:, None]
    expected = explicit_attention(inputs, built, relative, placement, scale=SCALE, keep=keep)
    if any(grid.periodic):  # to frequencies that are rounded no gradient flows
        leaves.pop("frequency")
    assert_same(with_gradients(output, leaves), with_gradients(expected, leaves))


@pytest.mark.parametrize("kernel", KERNELS)
def test_causal_values_and_gradients_are_those_of_the_equation_in_chunks_and_token_by_token(kernel: str):
    num_tokens = 139  # more than a chunk
    relative, leaves = leaves_of(num_tokens, build(kernel, 1))
    inputs, built, sites = list(leaves.values())[:3], build_kernel(kernel, None, DIM), Sites(Grid(num_tokens))
    mask = draw_mask(2, num_tokens)
    mask[0, :3] = False
    past = torch.ones(num_tokens, num_tokens, dtype=torch.bool).tril()
    options: dict[str, Any] = {"kernel": built, "relative": relative, "grid": sites.grid, "scale": SCALE}
    for key_mask, keep in ((None, past[None]), (mask, past & mask[:, None])):
        truth = explicit_attention(inputs, built, relative, Placement(sites, sites), scale=SCALE, keep=keep)
        # Of a query that sees nothing the explicit matrix has no gradient.
        seen = keep.any(dim=-1)[:, None, :, None]
        expected = with_gradients(truth.where(seen, 0.0), leaves) if key_mask is None else {"output": truth.detach()}
        for backend in BACKENDS:
            output = attention(*inputs, **options, key_mask=key_mask, is_causal=True, backend=backend)
            found = with_gradients(output, leaves)
            assert all(one.isfinite().all() for one in found.values())
            assert_same(found, expected)
            expected |= found  # and so the backends' gradients with a mask are each other's
    outputs, state = [], None
    for token in range(num_tokens):
        query, key, value = (one[:, :, token : token + 1].detach() for one in inputs)
        output, state = decode(query, key, value, state, kernel=built, relative=relative, scale=SCALE)
        outputs.append(output)
    assert state is not None
    assert state.unturned is not None
    assert state.unturned.total.shape[2] == state.total.total.shape[2] - 2  # a length for each of two pairs
    whole = attention(*inputs, **options, is_causal=True, backend="dense")
    assert relative_change(torch.cat(outputs, dim=2), whole) <= TOLERANCE


@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**16), factor=st.sampled_from([0.1, 1.0, 3.0]), backend=st.sampled_from(BACKENDS))
def test_no_output_is_larger_than_the_largest_value(kernel: str, seed: int, factor: float, backend: str):
    query, key, value = draw_inputs(1 + 15, heads=HEADS, dim=DIM, seed=seed, scale=factor)
    relative, built = build(kernel, 2), build_kernel(kernel, None, DIM)
    for is_causal, way in ((False, backend), (True, "dense")):
        output = attention(
            query,
            key,
            value,
            kernel=built,
            relative=relative,
            grid=Grid((3, 5)),
            is_causal=is_causal,
            backend=way,
            num_prefix_tokens=1,
        )
        largest = value.abs().amax(dim=2, keepdim=True)
        assert (output.abs() <= largest * (1 + 1e-9)).all()


def share_no_feature(dtype: torch.dtype, *, scale: float = 1.0) -> tuple[list[Tensor], Grid, Tensor]:
    """A query e_0 and keys e_1, and a frequency by which the first key is turned onto the query."""
    query, key = (
        scale * torch.eye(2, dtype=dtype)[side].expand(1, 1, 2, 2).contiguous().requires_grad_() for side in (0, 1)
    )
    value = scale * torch.tensor([1.0, 0.0], dtype=dtype).reshape(1, 1, 2, 1)
    return [query, key, value], Grid(2), torch.full((1, 1, 1), torch.pi / 2, dtype=torch.float64)


@pytest.mark.parametrize("backend", BACKENDS)
def test_where_query_and_keys_share_no_feature_lengths_hold_the_bound_and_features_do_not(backend: str):
    inputs, grid, frequency = share_no_feature(torch.float64)
    largest = {}
    for normalizer in ("features", "lengths"):
        relative = Rotary(frequency, normalizer)
        output = attention(*inputs, kernel="squared_relu", relative=relative, grid=grid, backend=backend)
        largest[normalizer] = float(output.detach().abs().max())
    assert largest["features"] > 1e5
    assert largest["lengths"] == pytest.approx(0.5)  # the first of two keys of one length


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_half_precision_at_thirty_times_unit_scale_stays_finite(backend: str, dtype: torch.dtype):
    inputs, grid, frequency = share_no_feature(dtype, scale=30.0)
    drawn = [(30 * one).to(dtype).requires_grad_() for one in draw_inputs(15, heads=HEADS, dim=16, scale=1.0)]
    many = torch.randn(HEADS, 8, 2, generator=Generator().manual_seed(1))
    for tensors, place, waves in ((inputs, grid, frequency), (drawn, Grid((3, 5)), many)):
        options: dict[str, Any] = {"kernel": "squared_relu", "grid": place, "backend": backend}
        output = attention(*tensors, **options, relative=Rotary(waves, "lengths"))
        assert output.dtype == dtype
        assert output.isfinite().all()
        assert all(one.isfinite().all() for one in torch.autograd.grad(output.sum(), list(tensors[:2])))
    output = attention(*inputs, kernel="squared_relu", grid=grid, backend=backend, relative=Rotary(frequency))
    assert output.isfinite().all() == (dtype == torch.bfloat16)  # whose range is that of float32


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
def test_pairs_of_length_zero_have_finite_gradients(backend: str, is_causal: bool):
    tensors = draw_inputs(7, heads=HEADS, dim=DIM)
    for one in tensors[:2]:
        one[0, :, :4] = 0.0  # of which the features are next to 0
    mask = torch.tensor([True, False, True, True, True, True, False]).expand(2, 7)  # and of these they are 0
    relative, leaves = with_leaves(build("squared_relu", 1))
    leaves |= {name: one.requires_grad_() for name, one in zip(("query", "key", "value"), tensors, strict=True)}
    options: dict[str, Any] = {"kernel": "squared_relu", "grid": Grid(7), "is_causal": is_causal, "backend": backend}
    output = attention(*tensors, **options, relative=relative, key_mask=mask)
    assert (output[0, :, :4].abs() < 1e-300).all()
    assert (output[0, :, 4:].abs() > 1e-9).all()
    assert all(one.isfinite().all() for one in with_gradients(output, leaves).values())


@pytest.mark.parametrize("kernel", KERNELS)
def test_rolling_the_tokens_of_a_torus_rolls_the_output(kernel: str):
    grid, inputs = Grid((3, 5), periodic=True), draw_inputs(15, heads=HEADS, dim=DIM)
    options: dict[str, Any] = {"kernel": build_kernel(kernel, None, DIM), "relative": build(kernel, 2), "grid": grid}
    for backend in BACKENDS:
        output = attention(*inputs, **options, backend=backend)
        rolled = [roll_tokens(grid, one, (1, -2)) for one in inputs]
        moved = attention(*rolled, **options, backend=backend)
        assert relative_change(moved, roll_tokens(grid, output, (1, -2))) <= TOLERANCE
        assert relative_change(moved, output) > 1e-3


def build_layer(normalizer: str, **options: Any) -> Attention:
    torch.manual_seed(0)
    axes = options.get("num_axes", 2)
    return Attention(8, 2, relative=RotaryModule(axes, 2, 2, normalizer=normalizer), **options).double().eval()


def test_the_parameters_of_a_layer_are_the_same_and_go_from_one_normalizer_to_the_other():
    source, target = build_layer("features"), build_layer("lengths")
    tokens = torch.randn(2, 15, 8, dtype=torch.float64, generator=Generator().manual_seed(2))
    expected = copy.deepcopy(target)(tokens, Grid((3, 5)))
    assert set(source.state_dict()) == set(target.state_dict())
    torch.nn.init.normal_(target.get_parameter("value.weight"))
    target.load_state_dict(source.state_dict())
    assert torch.equal(target(tokens, Grid((3, 5))), expected)
    assert relative_change(source(tokens, Grid((3, 5))), expected) > 1e-3


def test_a_layers_steps_give_its_outputs():
    layer = build_layer("lengths", causal=True, num_axes=1)
    tokens = torch.randn(2, 11, 8, dtype=torch.float64, generator=Generator().manual_seed(2))
    outputs, state = [], None
    for token in tokens.unbind(dim=1):
        output, state = layer.step(token, state)
        outputs.append(output)
    assert relative_change(torch.stack(outputs, dim=1), layer(tokens, Grid(11))) <= TOLERANCE


def test_a_layer_can_be_diagnosed_and_explained():
    layer = build_layer("lengths", kernel=SquaredRelu())
    tokens = torch.randn(2, 35, 8, dtype=torch.float64, generator=Generator().manual_seed(2))
    found = diagnose(layer, tokens, Grid((5, 7), periodic=True))
    assert found.groups[0].rounding["linear"] < 1e-12
    assert found.shift is not None
    assert "rotary" in str(found)
    assert {"dense", "linear"} == set(explain(layer, Grid((5, 7))).groups[0].costs)


@pytest.mark.parametrize("backend", ["auto", "dense"])
def test_softmax_has_no_features_to_take_lengths_of(backend: str, as_users_run_it: None):
    inputs, relative = draw_inputs(11, heads=HEADS, dim=DIM), build("softmax", 1)
    with pytest.raises(ValueError, match=r"relative\.normalizer is 'lengths', expected 'features' with kernel="):
        attention(*inputs, kernel="softmax", relative=relative, grid=Grid(11), backend=backend)
    plain = dataclasses.replace(relative, normalizer="features")
    assert attention(*inputs, kernel="softmax", relative=plain, grid=Grid(11), backend=backend).isfinite().all()
