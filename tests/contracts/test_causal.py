import math
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Bool, Float
from torch import Tensor

from teka import Grid
from teka.functional import (
    ClippedDistanceBias,
    ContentKernel,
    FeatureKernel,
    JointSinusoidalBias,
    PositiveFeatures,
    RelativeKernel,
    Taylor2,
    attention,
    decode,
)
from teka.functional.attention_plan import AttentionPlan
from teka.functional.backends import linear
from teka.functional.kernels.content_kernel import mask_features
from teka.functional.positions import Positions
from teka.nn import Attention
from tests.contracts.cases import (
    CAUSAL_CASES,
    DEVICE,
    FAST_CAUSAL_CASES,
    PAIRS,
    Case,
    build_kernel,
    build_relative,
    causal_backends,
    draw_inputs,
    draw_mask,
    is_signed,
    one_axis_backends,
    parametrize_by_kernel,
    reference_attention,
    relative_error,
    with_leaves,
)

TOLERANCE = 1e-10
# Errors of float32 relative to dense attention in float64 were up to 1.2e-5. With signed weights, a
# denominator near 0 may magnify rounding.
FLOAT32_BAND = 3e-5
FLOAT32_SIGNED_BAND = 5e-3
SCALE = 0.4
HEADS, DIM = 3, 5
CHUNK = linear.CHUNK_TOKENS


@dataclass(frozen=True)
class Sequence:
    """A random example: prefix tokens, then the tokens of a grid, with some keys masked."""

    shape: tuple[int, ...]
    num_prefix_tokens: int
    num_leading_dropped: int | None
    seed: int


@st.composite
def sequences(draw: st.DrawFn, case: Case) -> Sequence:
    lengths = [1, 2, 7, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK - 1, 2 * CHUNK, 2 * CHUNK + 1, 300]
    shapes = [(length,) for length in lengths]
    if case.backend not in one_axis_backends(case.relative):
        shapes += [(3, 5), (2, CHUNK // 2), (43, 3), (5, 2, 13)]
    takes_prefix = case.relative in (None, "rotation_joint")
    return Sequence(
        shape=draw(st.sampled_from(shapes)),
        num_prefix_tokens=draw(st.integers(0, 2)) if takes_prefix else 0,
        num_leading_dropped=draw(st.sampled_from([None, 0, 3, CHUNK + 3])),
        seed=draw(st.integers(0, 2**16)),
    )


def build_pair(case: Case, num_axes: int = 1) -> tuple[ContentKernel, RelativeKernel | None]:
    relative = build_relative(
        case.relative, kernel=case.kernel, heads=HEADS, dim=DIM, num_axes=num_axes, max_distance=4
    )
    return build_kernel(case.kernel, relative, DIM), relative


def causal_mask(batch: int, num_tokens: int, num_leading_dropped: int, seed: int = 0) -> Tensor:
    """Return a mask without the first keys of the first sample and with the last key."""
    mask = draw_mask(batch, num_tokens, seed)
    mask[0, :num_leading_dropped] = False
    mask[:, -1] = True
    return mask


def attend_with_gradients(
    case: Case, sequence: Sequence, backend: str, dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    """Return the output and the gradient of every input tensor."""
    grid = Grid(sequence.shape)
    num_tokens = sequence.num_prefix_tokens + grid.num_tokens
    inputs = draw_inputs(num_tokens, heads=HEADS, dim=DIM, seed=sequence.seed)
    leaves = {
        name: tensor.float().to(dtype).requires_grad_()
        for name, tensor in zip(("query", "key", "value"), inputs, strict=True)
    }
    kernel, relative = build_pair(case, grid.num_axes)
    kernel, more = with_leaves(kernel, dtype)
    query, key, value = leaves.values()
    leaves |= {f"kernel.{name}": leaf for name, leaf in more.items()}
    if relative is not None:
        relative, more = with_leaves(relative, dtype)
        leaves |= {f"relative.{name}": leaf for name, leaf in more.items()}
    dropped = sequence.num_leading_dropped
    output = attention(
        query,
        key,
        value,
        kernel=kernel,
        relative=relative,
        grid=grid,
        key_mask=None if dropped is None else causal_mask(2, num_tokens, dropped, sequence.seed),
        is_causal=True,
        backend=backend,
        num_prefix_tokens=sequence.num_prefix_tokens,
    )
    cotangent = (
        torch.cos(torch.arange(output.numel(), dtype=torch.float64, device=DEVICE))
        .reshape(output.shape)
        .to(dtype)
    )
    gradients = torch.autograd.grad(
        (output * cotangent).sum(), list(leaves.values()), allow_unused=True
    )
    results = {"output": output.detach()}
    for name, leaf, gradient in zip(leaves, leaves.values(), gradients, strict=True):
        results[name] = torch.zeros_like(leaf) if gradient is None else gradient
    return results


@parametrize_by_kernel(PAIRS)
def test_supported_backends_are_the_documented_ones(pair: Case):
    def supported_backends(sites: Positions, num_prefix_tokens: int = 0) -> set[str]:
        kernel, relative = build_pair(pair, sites.num_axes)
        positions = replace(sites, num_prefix_tokens=num_prefix_tokens)
        on_torus = isinstance(relative, JointSinusoidalBias) and any(positions.periods)
        kernel_for_positions = (
            relative if relative is None or on_torus else relative.adapt_to_positions(positions)
        )
        num_tokens = (sites.num_queries_with_position or 0) + num_prefix_tokens
        plan = AttentionPlan(kernel, kernel_for_positions, positions, 1.0, is_causal=True)
        return set(
            plan.estimate_costs(
                heads=1, num_queries=num_tokens, num_keys=num_tokens, dim=DIM, dim_value=4, batch=1
            )
        )

    documented = causal_backends(pair.kernel, pair.relative)
    assert supported_backends(Positions(Grid(11))) == documented
    for sites in (Positions(Grid(11, periodic=True)), Positions(Grid((3, 5)))):
        assert supported_backends(sites) == documented - one_axis_backends(pair.relative)
    if pair.relative != "table":
        assert supported_backends(
            Positions(points=torch.rand(2, 11, 3))
        ) == documented - one_axis_backends(pair.relative)
    with_prefix = documented if pair.relative in (None, "rotation_joint") else {"dense"}
    assert supported_backends(Positions(Grid(11)), num_prefix_tokens=1) == with_prefix


@parametrize_by_kernel(FAST_CAUSAL_CASES)
@settings(max_examples=4)
@given(data=st.data())
def test_values_and_gradients_equal_the_dense_backend(case: Case, data: st.DataObject):
    sequence = data.draw(sequences(case))
    reference, fast = (
        attend_with_gradients(case, sequence, backend) for backend in ("dense", case.backend)
    )
    for name, expected in reference.items():
        assert relative_error(fast[name], expected) <= TOLERANCE, name


@parametrize_by_kernel(CAUSAL_CASES)
def test_float32_is_close_to_float64(case: Case):
    sequence = Sequence((CHUNK + 9,), num_prefix_tokens=0, num_leading_dropped=3, seed=0)
    reference = attend_with_gradients(case, sequence, "dense")
    single = attend_with_gradients(case, sequence, case.backend, torch.float32)
    for name, expected in reference.items():
        change = relative_error(single[name].double(), expected)
        assert change <= (FLOAT32_SIGNED_BAND if is_signed(case) else FLOAT32_BAND), name


@parametrize_by_kernel(PAIRS, num_prefix_tokens=[0, 2])
def test_causal_order_is_the_order_of_tokens_not_of_positions(pair: Case, num_prefix_tokens: int):
    inputs = draw_inputs(num_prefix_tokens + 23, heads=HEADS, dim=DIM)
    mask = causal_mask(2, num_prefix_tokens + 23, 5)
    generator = torch.Generator().manual_seed(1)
    scattered = 5 * torch.rand(2, 23, 3, dtype=torch.float64, generator=generator).to(DEVICE)
    keep = mask.new_ones(mask.shape[1], mask.shape[1]).tril() & mask[:, None]
    for sites in (Positions(Grid(23)), Positions(points=scattered)):
        if sites.grid is None and pair.relative == "table":
            continue  # a table needs a grid
        kernel, relative = build_pair(pair, sites.num_axes)
        positions = replace(sites, num_prefix_tokens=num_prefix_tokens)
        expected = reference_attention(inputs, kernel, relative, positions, scale=SCALE, keep=keep)
        output = attention(
            *inputs,
            kernel=kernel,
            relative=relative,
            grid=sites.grid,
            positions=sites.points,
            key_mask=mask,
            is_causal=True,
            scale=SCALE,
            num_prefix_tokens=num_prefix_tokens,
        )
        assert relative_error(output, expected) <= TOLERANCE
        assert not output[0, :, :5].any()


@parametrize_by_kernel(FAST_CAUSAL_CASES)
def test_chunks_and_decoding_equal_dense(case: Case):
    inputs = draw_inputs(13, heads=HEADS, dim=DIM)
    kernel, relative = build_pair(case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "CHUNK_TOKENS", 4)
        chunked, dense = (
            attention(
                *inputs,
                kernel=kernel,
                relative=relative,
                grid=Grid(13),
                is_causal=True,
                backend=backend,
            )
            for backend in (case.backend, "dense")
        )
    outputs, state = [], None
    for token in range(13):
        query, key, value = (tensor[:, :, token : token + 1] for tensor in inputs)
        output, state = decode(query, key, value, state, kernel=kernel, relative=relative)
        outputs.append(output)
    assert relative_error(chunked, dense) <= TOLERANCE
    assert relative_error(torch.cat(outputs, dim=2), dense) <= TOLERANCE


def past_outputs_for_changed_futures(
    inputs: list[Tensor],
    kernel: ContentKernel,
    relative: RelativeKernel | None,
    backend: str,
    past: int,
) -> list[Tensor]:
    """Return the outputs of the first tokens for five versions of the later keys and values.

    They are unchanged, scaled by 1000, scaled by 0, replaced, and not finite.
    """
    query, key, value = inputs
    grid = None if relative is None else Grid(query.shape[2])

    def first(key: Tensor, value: Tensor) -> Tensor:
        output = attention(
            query,
            key,
            value,
            kernel=kernel,
            relative=relative,
            grid=grid,
            is_causal=True,
            backend=backend,
        )
        return output[:, :, :past]

    outputs = [first(key, value)]
    _, other_key, other_value = draw_inputs(
        query.shape[2], heads=HEADS, dim=DIM, seed=9, dtype=key.dtype
    )
    nan_input = (math.nan * key, math.inf * value)
    for later_key, later_value in (
        (1e3 * key, 1e3 * value),
        (0.0 * key, value),
        (other_key, other_value),
        nan_input,
    ):
        changed = (
            torch.cat([now[:, :, :past], later[:, :, past:]], dim=2)
            for now, later in ((key, later_key), (value, later_value))
        )
        outputs.append(first(*changed))
    return outputs


@parametrize_by_kernel(CAUSAL_CASES, past=[1, 77, CHUNK])
def test_future_tokens_do_not_change_past_outputs(case: Case, past: int):
    dtype = torch.float64 if past == 77 else torch.float32
    inputs = draw_inputs(2 * CHUNK + 5, heads=HEADS, dim=DIM, dtype=dtype)
    before, *others = past_outputs_for_changed_futures(
        inputs, *build_pair(case), case.backend, past
    )
    assert before.isfinite().all()
    for after in others:
        assert torch.equal(after, before)


@parametrize_by_kernel(CAUSAL_CASES)
def test_nan_token_affects_only_later_outputs_and_gradients(case: Case):
    inputs = draw_inputs(2 * CHUNK + 5, heads=HEADS, dim=DIM)
    kernel, relative = build_pair(case)
    results = []
    for nan_input in (None, 0, 1, 2):
        tensors = [tensor.clone() for tensor in inputs]
        if nan_input is not None:
            tensors[nan_input][0, 0, 100] = math.nan
        leaves = [tensor.requires_grad_() for tensor in tensors]
        grid = None if relative is None else Grid(2 * CHUNK + 5)
        output = attention(
            *leaves,
            kernel=kernel,
            relative=relative,
            grid=grid,
            is_causal=True,
            backend=case.backend,
        )
        results.append(
            torch.autograd.grad(output[:, :, :100].square().sum(), leaves, materialize_grads=True)
        )
        if nan_input is not None:
            assert output[0, 0, 100].isnan().all()
            assert output[0, 0, 101:].isnan().all() == (nan_input > 0)
            assert all(
                relative_error(gradient, expected) <= TOLERANCE
                for gradient, expected in zip(results[-1], results[0], strict=True)
            )


@dataclass(frozen=True)
class MaximumOverAllKeys(PositiveFeatures):
    """A faulty version that subtracts the maximum exponent of all keys, also of later keys."""

    name: ClassVar[str] = "maximum_over_all_keys"
    epsilon: float = 0.0

    def causal_key_features(
        self,
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
    ) -> tuple[
        Float[Tensor, "batch heads keys features"], Float[Tensor, "batch heads keys"] | None
    ]:
        exponent = self.key_exponent(key, scale=scale)
        peak = exponent.amax(dim=(-2, -1), keepdim=True)
        return mask_features(torch.exp(exponent - peak) + self.epsilon, key_mask), None


@pytest.mark.parametrize("backend", ["linear", "dense"])
@pytest.mark.parametrize("epsilon", [0.0, 1e-4])
def test_a_maximum_over_all_keys_would_leak_the_future(epsilon: float, backend: str):
    is_correct, _ = build_pair(Case("positive", None))
    assert isinstance(is_correct, PositiveFeatures)
    broken = MaximumOverAllKeys(is_correct.projection, epsilon)
    # The exponents of long keys are far below those of zero keys, so that past features underflow.
    query, key, value = draw_inputs(
        2 * CHUNK + 5, heads=HEADS, dim=DIM, scale=1.0, dtype=torch.float32
    )
    inputs = [query, 20 * key, value]
    for kernel, leaks in ((is_correct, False), (broken, True)):
        before, *others = past_outputs_for_changed_futures(inputs, kernel, None, backend, 77)
        changes = [relative_error(after, before) for after in others]
        assert (max(changes) > 0.05) == leaks
        assert all(torch.equal(after, before) for after in others) != leaks


def causal_layer(pair: Case) -> Attention:
    torch.manual_seed(0)
    layer = (
        Attention(8, 2, kernel=pair.kernel, relative=pair.relative, causal=True, num_axes=1)
        .double()
        .eval()
    )
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return layer.to(DEVICE)


@parametrize_by_kernel(PAIRS)
def test_future_tokens_do_not_change_past_outputs_of_a_layer(pair: Case):
    layer, tokens = causal_layer(pair), torch.randn(2, 11, 8, dtype=torch.float64).to(DEVICE)
    other = torch.cat(
        [tokens[:, :6], 1e3 * torch.randn(2, 5, 8, dtype=torch.float64).to(DEVICE)], dim=1
    )
    before, after = layer(tokens, Grid(11)), layer(other, Grid(11))
    assert torch.equal(after[:, :6], before[:, :6])
    assert relative_error(after[:, 6:], before[:, 6:]) > 1e-3


@parametrize_by_kernel(FAST_CAUSAL_CASES)
def test_decoding_steps_equal_the_forward_pass(pair: Case):
    layer, tokens = causal_layer(pair), torch.randn(2, 11, 8, dtype=torch.float64).to(DEVICE)
    outputs, state = [], None
    for token in tokens.unbind(dim=1):
        output, state = layer.step(token, state)
        outputs.append(output)
    # The denominator of rotary may be near 0 and magnify rounding.
    tolerance = 1e-6 if pair.relative == "rotary" else TOLERANCE
    assert relative_error(torch.stack(outputs, dim=1), layer(tokens, Grid(11))) <= tolerance


@pytest.mark.parametrize("backend", ["auto", "linear", "dense"])
@pytest.mark.parametrize("relative", [None, "fourier", "rotary", "rotation"])
def test_kernel_with_a_mean_over_keys_is_an_error(relative: str | None, backend: str):
    if (relative, backend) == ("rotation", "linear"):
        return  # rotation has no linear backend
    inputs = draw_inputs(7, heads=HEADS, dim=DIM)
    grid = None if relative is None else Grid(7)
    with pytest.raises(
        ValueError, match=r"key_shift must be 'none' in causal attention.*got 'mean'"
    ):
        attention(
            *inputs,
            kernel=Taylor2(key_shift="mean"),
            relative=relative,
            grid=grid,
            is_causal=True,
            backend=backend,
        )


def test_mean_over_keys_is_an_error_for_decode_and_causal_layers():
    query, key, value = draw_inputs(1, heads=HEADS, dim=DIM)
    with pytest.raises(
        ValueError, match=r"key_shift must be 'none' in causal attention.*got 'mean'"
    ):
        decode(query, key, value, None, kernel=Taylor2(key_shift="mean"))
    with pytest.raises(
        ValueError, match=r"key_shift must be 'none' in causal attention.*got 'mean'"
    ):
        Attention(8, 2, kernel=Taylor2(key_shift="mean"), relative=None, causal=True)(
            torch.zeros(2, 5, 8)
        )


@pytest.mark.parametrize("grid", [Grid((3, 5)), Grid(15, periodic=True)])
@pytest.mark.parametrize("kernel", ["constant", "squared_relu"])
def test_causal_rings_need_a_bounded_sequence(kernel: str, grid: Grid):
    inputs = draw_inputs(15, heads=HEADS, dim=DIM)
    case = Case(kernel, "clipped", "rings")
    built, relative = build_pair(case, grid.num_axes)
    assert isinstance(relative, ClippedDistanceBias)
    with pytest.raises(
        ValueError, match=r"backend must be one of 'auto', 'dense' for this kernel.*got 'rings'"
    ):
        attention(
            *inputs, kernel=built, relative=relative, grid=grid, is_causal=True, backend="rings"
        )


def test_causal_attention_does_not_fit_the_kernel_to_all_keys():
    # Otherwise "optimal" would be fitted to later queries and keys too.
    inputs = draw_inputs(11, heads=HEADS, dim=DIM)
    kernel = build_kernel("optimal", None, DIM)
    assert isinstance(kernel, FeatureKernel)
    query, key, _ = inputs
    fitted = kernel.with_statistics(query, key, scale=SCALE, query_mask=None, key_mask=None)
    outputs = [
        past_outputs_for_changed_futures(inputs, feature_kernel, None, "linear", 6)
        for feature_kernel in (kernel, fitted)
    ]
    for before, *others in outputs:
        assert all(torch.equal(after, before) for after in others)
    assert relative_error(outputs[1][0], outputs[0][0]) > 1e-3
