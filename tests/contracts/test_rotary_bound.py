"""Contracts of rotary with each normalizer: the equation, bounded outputs and equivariance."""

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

from teka import Grid, diagnose, explain
from teka.data import load
from teka.functional import KERNELS as KERNELS_BY_NAME
from teka.functional import FeatureKernel, Rotary, SquaredRelu, attention, decode
from teka.functional.positions import Positions
from teka.functional.relative.rotary import LENGTH_SHARE
from teka.models import Performer
from teka.nn import Attention, LearnedRelativeKernel
from tests.contracts.cases import (
    build_kernel,
    draw_inputs,
    draw_mask,
    is_weighted_mean,
    reference_attention,
    relative_error,
    roll_tokens,
    with_leaves,
)

TOLERANCE = 1e-10
SCALE = 0.4
HEADS, DIM = 3, 5
KERNELS = ("squared_relu", "positive", "elu", "trigonometric")
BACKENDS = ("dense", "linear")
NORMALIZERS = ("mixed", "nonnegative", "lengths")
# Bounds of |out| / max |v|.
BOUNDS = {"mixed": 1 / LENGTH_SHARE, "nonnegative": 1.0, "lengths": 1.0}
BOUNDED_KERNELS = tuple(
    name
    for name in KERNELS_BY_NAME
    if name not in ("softmax", "gaussian", "constant") and is_weighted_mean(name)
)


def build(num_axes: int, normalizer: str) -> Rotary:
    """Return a rotary kernel with two rotated pairs, so that some features are not rotated."""
    frequency = torch.randn(
        HEADS, 2, num_axes, generator=Generator().manual_seed(1), dtype=torch.float64
    )
    return Rotary(frequency, normalizer)


def with_gradients(output: Tensor, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the output and the gradient of every leaf."""
    cotangent = torch.cos(torch.arange(output.numel(), dtype=torch.float64)).reshape(output.shape)
    gradients = torch.autograd.grad((output * cotangent).sum(), list(leaves.values()))
    return {"output": output.detach(), **dict(zip(leaves, gradients, strict=True))}


def leaves_of(num_tokens: int, relative: Rotary) -> tuple[Rotary, dict[str, Tensor]]:
    inputs = draw_inputs(num_tokens, heads=HEADS, dim=DIM)
    named = zip(("query", "key", "value"), inputs, strict=True)
    rotary, more = with_leaves(relative)
    assert isinstance(rotary, Rotary)
    return rotary, {**{name: tensor.requires_grad_() for name, tensor in named}, **more}


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor], of: str = "") -> None:
    for name, tensor in expected.items():
        assert relative_error(actual[name], tensor) <= TOLERANCE, f"{name} {of}"


@pytest.mark.parametrize(
    ("grid", "num_prefix_tokens", "masked"),
    [
        pytest.param(Grid(11), 0, False, id="line"),
        pytest.param(Grid((3, 5)), 2, True, id="plane with a prefix and dropped keys"),
        pytest.param(Grid((3, 5), periodic=True), 1, False, id="torus with a prefix"),
    ],
)
@pytest.mark.parametrize("kernel", KERNELS)
def test_values_and_gradients_equal_the_equation(
    kernel: str, grid: Grid, num_prefix_tokens: int, masked: bool
):
    num_tokens = num_prefix_tokens + grid.num_tokens
    built, mask = build_kernel(kernel, None, DIM), draw_mask(2, num_tokens) if masked else None
    positions = Positions(grid, num_prefix_tokens=num_prefix_tokens)
    for normalizer in NORMALIZERS:
        relative, leaves = leaves_of(num_tokens, build(grid.num_axes, normalizer))
        inputs = list(leaves.values())[:3]
        if any(grid.periodic):  # rounded frequencies have no gradient
            leaves.pop("frequency")
        keep = None if mask is None else mask[:, None]
        reference = reference_attention(inputs, built, relative, positions, scale=SCALE, keep=keep)
        expected = with_gradients(reference, leaves)
        for backend in BACKENDS:
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
            assert_same(with_gradients(output, leaves), expected, f"{normalizer}, {backend}")


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_causal_values_and_gradients_equal_the_equation(kernel: str, normalizer: str):
    num_tokens = 139  # more than a chunk
    relative, leaves = leaves_of(num_tokens, build(1, normalizer))
    inputs, built, positions = (
        list(leaves.values())[:3],
        build_kernel(kernel, None, DIM),
        Positions(Grid(num_tokens)),
    )
    mask = draw_mask(2, num_tokens)
    mask[0, :3] = False
    past = torch.ones(num_tokens, num_tokens, dtype=torch.bool).tril()
    options: dict[str, Any] = {
        "kernel": built,
        "relative": relative,
        "grid": positions.grid,
        "scale": SCALE,
    }
    for key_mask, keep in ((None, past[None]), (mask, past & mask[:, None])):
        reference = reference_attention(inputs, built, relative, positions, scale=SCALE, keep=keep)
        # The reference has no gradient for a query without keys.
        has_keys = keep.any(dim=-1)[:, None, :, None]
        expected = (
            with_gradients(reference.where(has_keys, 0.0), leaves)
            if key_mask is None
            else {"output": reference.detach()}
        )
        for backend in BACKENDS:
            output = attention(
                *inputs, **options, key_mask=key_mask, is_causal=True, backend=backend
            )
            actual = with_gradients(output, leaves)
            assert all(tensor.isfinite().all() for tensor in actual.values())
            assert_same(actual, expected)
            expected |= actual  # gradients with a mask are compared among backends
    outputs, state = [], None
    for token in range(num_tokens):
        query, key, value = (tensor[:, :, token : token + 1].detach() for tensor in inputs)
        output, state = decode(
            query, key, value, state, kernel=built, relative=relative, scale=SCALE
        )
        outputs.append(output)
    assert state is not None
    whole = attention(*inputs, **options, is_causal=True, backend="dense")
    assert relative_error(torch.cat(outputs, dim=2), whole) <= TOLERANCE


@st.composite
def extreme_tokens(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Tensor]]:
    """Draw a shape with one to three axes, and inputs that are hard to normalize."""
    shape = draw(st.sampled_from([(13,), (3, 5), (2, 3, 2)]))
    seed, num_tokens = draw(st.integers(0, 2**16)), 1 + math.prod(shape)
    query, key, value = draw_inputs(
        num_tokens, heads=HEADS, dim=DIM, seed=seed, dtype=torch.float32
    )
    match draw(
        st.sampled_from(["random", "blank", "constant", "nearly constant", "one-hot", "opposed"])
    ):
        case "blank":
            query, key = torch.zeros_like(query), torch.zeros_like(key)
        case "constant":
            query, key, value = (
                tensor[:, :, :1].expand_as(tensor) for tensor in (query, key, value)
            )
        case "nearly constant":
            query, key = (tensor[:, :, :1] + 0.01 * tensor for tensor in (query, key))
        case "one-hot":
            indices = torch.randint(
                DIM, (2, HEADS, num_tokens), generator=Generator().manual_seed(seed)
            )
            query = torch.nn.functional.one_hot(indices, DIM).float()
            key = query.roll(1, dims=-1)  # the two features of a pair, a quarter turn apart
        case "opposed":
            key = -query
    sizes = st.sampled_from([1e-30, 1e-8, 1.0, 30.0, 1e6])
    return shape, [
        query * draw(sizes),
        key * draw(sizes),
        value * draw(st.sampled_from([1e-8, 1.0, 1e6])),
    ]


@pytest.mark.parametrize("kernel", BOUNDED_KERNELS)
@settings(max_examples=8 * len(NORMALIZERS))
@given(
    tokens=extreme_tokens(),
    way=st.sampled_from(["linear", "dense", "causal", "masked", "step"]),
    normalizer=st.sampled_from(NORMALIZERS),
)
def test_outputs_are_within_the_documented_bound(
    kernel: str, normalizer: str, tokens: tuple[tuple[int, ...], list[Tensor]], way: str
):
    shape, (query, key, value) = tokens
    built = build_kernel(kernel, None, DIM)
    assert isinstance(built, FeatureKernel)
    # Weights without rotation are those of the content kernel, and must be nonnegative for a bound.
    first = 1 if built.nonnegative else 0
    query, key, value = (tensor[:, :, 1 - first :] for tensor in (query, key, value))
    relative = build(1 if way == "step" else len(shape), normalizer)
    if built.nonnegative or normalizer == "nonnegative":
        assert relative.output_bound_with(built) == BOUNDS[normalizer]
    options: dict[str, Any] = {"kernel": built, "relative": relative}
    mask = None
    if way == "step":
        outputs, state = [], None
        for token in range(query.shape[2]):
            now = slice(token, token + 1)
            output, state = decode(
                query[:, :, now], key[:, :, now], value[:, :, now], state, **options
            )
            outputs.append(output)
        output = torch.cat(outputs, dim=2)
    else:
        mask = draw_mask(2, query.shape[2]) if way == "masked" else None
        output = attention(
            query,
            key,
            value,
            **options,
            grid=Grid(shape),
            num_prefix_tokens=first,
            key_mask=mask,
            is_causal=way == "causal",
            backend=way if way in BACKENDS else "auto",
        )
    kept = value if mask is None else value.masked_fill(~mask[:, None, :, None], 0.0)
    largest = kept.abs().amax(dim=2, keepdim=True)
    assert (output.abs() <= largest * BOUNDS[normalizer] * (1 + 1e-4)).all()


def share_no_feature(
    dtype: torch.dtype, *, scale: float = 1.0
) -> tuple[list[Tensor], Grid, Tensor]:
    """Return a query e_0, keys e_1 and a frequency that rotates the first key onto the query."""
    query, key = (
        scale * torch.eye(2, dtype=dtype)[side].expand(1, 1, 2, 2).contiguous().requires_grad_()
        for side in (0, 1)
    )
    value = scale * torch.tensor([1.0, 0.0], dtype=dtype).reshape(1, 1, 2, 1)
    return [query, key, value], Grid(2), torch.full((1, 1, 1), torch.pi / 2, dtype=torch.float64)


@pytest.mark.parametrize("backend", BACKENDS)
def test_bounds_hold_if_queries_and_keys_share_no_feature(backend: str):
    inputs, grid, frequency = share_no_feature(torch.float64)
    largest = {}
    for normalizer in ("features", *NORMALIZERS):
        relative = Rotary(frequency, normalizer)
        output = attention(
            *inputs, kernel="squared_relu", relative=relative, grid=grid, backend=backend
        )
        largest[normalizer] = float(output.detach().abs().max())
    assert largest["features"] > 1e5
    assert largest["lengths"] == pytest.approx(0.5)  # the first of two keys of equal length
    assert largest["mixed"] == pytest.approx(0.5 / LENGTH_SHARE, rel=1e-4)
    assert largest["nonnegative"] == pytest.approx(
        1.0, rel=2e-3
    )  # the other weight is the smallest possible


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_large_inputs_are_finite_in_half_precision(backend: str, dtype: torch.dtype):
    inputs, grid, frequency = share_no_feature(dtype, scale=30.0)
    drawn = [
        (30 * tensor).to(dtype).requires_grad_()
        for tensor in draw_inputs(15, heads=HEADS, dim=16, scale=1.0)
    ]
    many = torch.randn(HEADS, 8, 2, generator=Generator().manual_seed(1))
    for tensors, place, waves in ((inputs, grid, frequency), (drawn, Grid((3, 5)), many)):
        options: dict[str, Any] = {"kernel": "squared_relu", "grid": place, "backend": backend}
        for normalizer in NORMALIZERS:
            output = attention(*tensors, **options, relative=Rotary(waves, normalizer))
            assert output.dtype == dtype
            assert output.isfinite().all()
            assert all(
                tensor.isfinite().all()
                for tensor in torch.autograd.grad(output.sum(), list(tensors[:2]))
            )
    unbounded = Rotary(frequency, "features")
    output = attention(
        *inputs, kernel="squared_relu", grid=grid, backend=backend, relative=unbounded
    )
    assert output.isfinite().all() == (dtype == torch.bfloat16)  # bfloat16 has the range of float32


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_zero_features_have_finite_gradients(normalizer: str):
    tensors = draw_inputs(7, heads=HEADS, dim=DIM)
    for tensor in tensors[:2]:
        tensor[0, :, :4] = 0.0  # its features are nearly 0
    mask = torch.tensor([True, False, True, True, True, True, False]).expand(
        2, 7
    )  # their features are exactly 0
    relative, leaves = with_leaves(build(1, normalizer))
    leaves |= {
        name: tensor.requires_grad_()
        for name, tensor in zip(("query", "key", "value"), tensors, strict=True)
    }
    options: dict[str, Any] = {
        "kernel": "squared_relu",
        "relative": relative,
        "grid": Grid(7),
        "key_mask": mask,
    }
    for is_causal, backend in itertools.product([False, True], BACKENDS):
        output = attention(*tensors, **options, is_causal=is_causal, backend=backend)
        assert (output.abs() > 1e-9).all(), backend
        assert all(tensor.isfinite().all() for tensor in with_gradients(output, leaves).values()), (
            backend
        )


@pytest.mark.parametrize("kernel", KERNELS)
def test_rolling_tokens_rolls_the_output(kernel: str):
    grid, inputs = Grid((3, 5), periodic=True), draw_inputs(15, heads=HEADS, dim=DIM)
    rolled = [roll_tokens(grid, tensor, (1, -2)) for tensor in inputs]
    options: dict[str, Any] = {"kernel": build_kernel(kernel, None, DIM), "grid": grid}
    for normalizer, backend in itertools.product(NORMALIZERS, BACKENDS):
        output, moved = (
            attention(*tensors, **options, relative=build(2, normalizer), backend=backend)
            for tensors in (inputs, rolled)
        )
        assert relative_error(moved, roll_tokens(grid, output, (1, -2))) <= TOLERANCE, (
            normalizer,
            backend,
        )
        assert relative_error(moved, output) > 1e-3, (normalizer, backend)


def build_layer(normalizer: str, **options: Any) -> Attention:
    torch.manual_seed(0)
    axes = options.get("num_axes", 2)
    return (
        Attention(
            8,
            2,
            relative=LearnedRelativeKernel(
                "rotary", num_axes=axes, heads=2, num_pairs=2, normalizer=normalizer
            ),
            **options,
        )
        .double()
        .eval()
    )


def test_state_dicts_fit_every_normalizer():
    source, target = build_layer("features"), build_layer("lengths")
    tokens = torch.randn(2, 15, 8, dtype=torch.float64, generator=Generator().manual_seed(2))
    expected = copy.deepcopy(target)(tokens, Grid((3, 5)))
    assert set(source.state_dict()) == set(target.state_dict())
    torch.nn.init.normal_(target.get_parameter("value.weight"))
    target.load_state_dict(source.state_dict())
    assert torch.equal(target(tokens, Grid((3, 5))), expected)
    assert relative_error(source(tokens, Grid((3, 5))), expected) > 1e-3


def test_decoding_steps_equal_the_forward_pass():
    layer = build_layer("lengths", causal=True, num_axes=1)
    tokens = torch.randn(2, 11, 8, dtype=torch.float64, generator=Generator().manual_seed(2))
    outputs, state = [], None
    for token in tokens.unbind(dim=1):
        output, state = layer.step(token, state)
        outputs.append(output)
    assert relative_error(torch.stack(outputs, dim=1), layer(tokens, Grid(11))) <= TOLERANCE


def test_layer_can_be_diagnosed_and_explained():
    layer = build_layer("lengths", kernel=SquaredRelu())
    tokens = torch.randn(2, 35, 8, dtype=torch.float64, generator=Generator().manual_seed(2))
    diagnosis = diagnose(layer, tokens, Grid((5, 7), periodic=True))
    assert diagnosis.groups[0].rounding["linear"] < 1e-12
    assert diagnosis.shift is not None
    assert "rotary" in str(diagnosis)
    assert {"dense", "linear"} == set(explain(layer, Grid((5, 7))).groups[0].costs)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_softmax_ignores_the_normalizer(normalizer: str):
    inputs, grid = draw_inputs(11, heads=HEADS, dim=DIM), Grid(11)
    output, expected = (
        attention(*inputs, kernel="softmax", relative=build(1, name), grid=grid)
        for name in (normalizer, "features")
    )
    assert torch.equal(output, expected)


def test_zero_frequencies_give_attention_with_lengths():
    inputs, grid = draw_inputs(11, heads=HEADS, dim=DIM), Grid(11)
    still = torch.zeros(HEADS, 2, 1, dtype=torch.float64)
    options: dict[str, Any] = {"kernel": "squared_relu", "grid": grid}
    plain = attention(*inputs, kernel="squared_relu")
    assert (
        relative_error(attention(*inputs, **options, relative=Rotary(still, "features")), plain)
        <= TOLERANCE
    )
    shares = [
        relative_error(attention(*inputs, **options, relative=Rotary(still, "mixed", share)), plain)
        for share in (1e-12, 0.1, 1.0)
    ]
    assert shares[0] <= TOLERANCE
    assert shares == sorted(shares)


@pytest.mark.parametrize("blank", ["ones", "random"])
def test_gradients_are_small_for_nearly_blank_images(blank: str):
    generator = Generator().manual_seed(0)
    norms = []
    for seed in range(30):
        torch.manual_seed(seed)
        layer = Attention(64, heads=4)
        token = torch.ones(64) if blank == "ones" else torch.randn(64, generator=generator)
        tokens = token + 0.01 * torch.randn(1, 256, 64, generator=generator)
        output = layer(tokens, Grid((16, 16)))
        (gradient,) = torch.autograd.grad(
            output.square().mean(), layer.get_parameter("query.weight")
        )
        norms.append(float(gradient.norm()))
    assert max(norms) <= 10


@pytest.mark.parametrize("heads", [2, 4, 16])
def test_blank_images_do_not_magnify_rounding(heads: int):
    grid, generator = Grid((16, 16), periodic=True), Generator().manual_seed(0)
    for seed in range(4):
        torch.manual_seed(seed)
        layer = Attention(64, heads=heads).eval()
        tokens = torch.randn(1, 1, 64, generator=generator).expand(1, 256, 64).clone()
        tokens[:, 17] = torch.randn(64, generator=generator)
        with torch.no_grad():
            output = layer(tokens, grid)
            moved = layer(roll_tokens(grid, tokens[:, None], (3, -5))[:, 0], grid)
        expected = roll_tokens(grid, output[:, None], (3, -5))[:, 0]
        assert (moved - expected).norm() <= 1e-5 * expected.norm()


def half_precision_error(model: Performer, images: Tensor, dtype: torch.dtype) -> float:
    """Return the largest error of a logit, relative to the range of all logits."""
    with torch.no_grad():
        exact = model(images)
        halved = copy.deepcopy(model).to(dtype)(images.to(dtype)).float()
    assert halved.isfinite().all()
    return float((halved - exact).abs().max() / exact.std())


def test_half_precision_is_close_to_float32_before_and_after_training():
    # The learning rate is 3e-3, without warm-up or clipping. With normalizer="features", outputs
    # reached a million times the values, and overflowed in float16.
    data, generator = load("digits", image_size=8), Generator().manual_seed(1)
    torch.manual_seed(1)
    model = Performer(8, 1, 10, dim=48, depth=3, heads=3, pool="mean", periodic=True)
    images = data.test.images[:10]
    # The trained model depends on the order of sums and thus on the processor. Each of its 3 blocks
    # rounds about 10 times, and each rounding changes a logit by at most about 2 ε.
    bands = {dtype: 60 * torch.finfo(dtype).eps for dtype in (torch.float16, torch.bfloat16)}
    views = (images, 1 - images, torch.zeros_like(images[:1]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for steps in (0, 60):  # normalizer="features" gives NaN by then
        for _ in range(steps):
            rows = torch.randint(len(data.train), (32,), generator=generator)
            loss = torch.nn.functional.cross_entropy(
                model(data.train.images[rows]), data.train.labels[rows]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        changes = {
            dtype: max(half_precision_error(model, view, dtype) for view in views)
            for dtype in bands
        }
        assert all(changes[dtype] <= band for dtype, band in bands.items()), changes
