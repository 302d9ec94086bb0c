import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from teka import Grid
from teka.functional import (
    KERNELS,
    ClippedDistanceBias,
    ContentKernel,
    Decay,
    DecodingState,
    FeatureKernel,
    PositiveFeatures,
    RelativeKernel,
    Rotary,
    attention,
    decode,
)
from tests.contracts.cases import (
    KERNEL_CLASSES,
    build_kernel,
    build_relative,
    draw_inputs,
    is_valid_pair,
    relative_error,
)

RELATIVES = (
    None,
    "clipped",
    "clipped_features",
    "shaw",
    "decay",
    "alibi",
    "fourier",
    "rotary",
    "rotation_joint",
)
PARTNERS = {
    relative: [
        kernel
        for kernel in KERNELS
        if issubclass(KERNEL_CLASSES[kernel], FeatureKernel) and is_valid_pair(kernel, relative)
    ]
    for relative in RELATIVES
}


def build_pair(
    kernel: str, relative: str | None, num_axes: int = 1
) -> tuple[ContentKernel, RelativeKernel | None]:
    built = build_relative(
        relative, heads=3, dim=5, num_axes=num_axes, kernel=kernel, max_distance=4
    )
    return build_kernel(kernel, built, 5), built


def decode_all(
    inputs: list[Tensor],
    kernel: str | ContentKernel,
    relative: str | RelativeKernel | None,
    positions: Tensor | None = None,
) -> tuple[Tensor, list[DecodingState]]:
    outputs, states, state = [], [], None
    for token in range(inputs[0].shape[2]):
        query, key, value = (tensor[:, :, token : token + 1] for tensor in inputs)
        position = None if positions is None else positions[..., token, :]
        output, state = decode(
            query, key, value, state, kernel=kernel, relative=relative, position=position
        )
        outputs.append(output)
        states.append(state)
    return torch.cat(outputs, dim=2), states


@pytest.mark.parametrize("relative", RELATIVES)
def test_decoding_in_parts_equals_causal_attention_with_a_mask(relative: str | None):
    for kernel in PARTNERS[relative]:
        pair: dict[str, Any] = dict(
            zip(("kernel", "relative"), build_pair(kernel, relative), strict=True)
        )
        inputs = draw_inputs(11)
        keep = torch.arange(11) >= torch.tensor([[0], [3]])
        expected = attention(*inputs, grid=Grid(11), is_causal=True, key_mask=keep, **pair)
        state, outputs = None, []
        for part in (slice(0, 6), slice(6, 7), slice(7, 11)):
            query, key, value = (tensor[:, :, part] for tensor in inputs)
            output, state = decode(query, key, value, state, key_mask=keep[:, part], **pair)
            outputs.append(output)
        assert state is not None
        assert state.num_tokens == 11
        assert relative_error(torch.cat(outputs, dim=2), expected) <= 1e-10, kernel


@pytest.mark.parametrize(("query_size", "key_size"), [(1000, 1), (100, 100)])
@pytest.mark.parametrize("relative", [None, "shaw", "decay"])
def test_masked_tokens_do_not_hide_small_weights(
    relative: str | None, query_size: float, key_size: float
):
    query, key, value = draw_inputs(40, dim=5)
    query, key, indices = query_size * query, key_size * key, torch.arange(40)
    keep = ((indices < 5) | (indices == 30)).expand(2, -1)
    for kernel in ("positive", "squared_relu"):
        built: Any = (
            build_pair(kernel, relative)[1]
            if relative != "decay"
            else Decay(torch.full((3, 1), 3.0).double())
        )
        options: dict[str, Any] = {"kernel": kernel, "relative": built}
        expected = attention(
            query,
            key,
            value,
            grid=Grid(40),
            is_causal=True,
            key_mask=keep,
            backend="dense",
            **options,
        )
        state, outputs = None, []
        for at in range(40):
            token = [tensor[:, :, at : at + 1] for tensor in (query, key, value)]
            output, state = decode(*token, state=state, key_mask=keep[:, at : at + 1], **options)
            outputs.append(output)
        assert relative_error(torch.cat(outputs, dim=2), expected) <= 1e-10, kernel


def num_elements(state: object) -> int:
    """Return the number of elements of a state."""
    if isinstance(state, Tensor):
        return state.numel()
    parts = (
        state
        if isinstance(state, tuple)
        else vars(state).values()
        if hasattr(state, "__dict__")
        else ()
    )
    return sum(map(num_elements, parts))


@pytest.mark.parametrize("relative", RELATIVES)
def test_decoding_equals_causal_attention(relative: str | None):
    for kernel in PARTNERS[relative]:
        built = build_pair(kernel, relative)
        inputs = draw_inputs(11)
        decoded, states = decode_all(inputs, *built)
        grid = None if relative is None else Grid(11)
        expected = attention(
            *inputs, kernel=built[0], relative=built[1], grid=grid, is_causal=True, backend="dense"
        )
        # With signed weights, a denominator near 0 can magnify rounding.
        assert relative_error(decoded, expected) < (1e-10 if kernel != "trigonometric" else 1e-8), (
            kernel
        )
        assert [state.num_tokens for state in states] == list(range(1, 12))
        assert len({num_elements(state) for state in states[4:]}) == 1, (
            kernel
        )  # the size is constant once the rings are full


@pytest.mark.parametrize("relative", RELATIVES)
def test_bfloat16_is_finite_and_accurate(relative: str | None):
    for kernel, scale in itertools.product(PARTNERS[relative], (1.0, 30.0)):
        built = build_pair(kernel, relative)
        inputs = draw_inputs(7, scale=scale, dtype=torch.bfloat16)
        decoded, _ = decode_all(inputs, *built)
        assert decoded.dtype == torch.bfloat16
        assert decoded.isfinite().all(), kernel
        if scale == 1.0 and kernel != "trigonometric":
            grid = None if relative is None else Grid(7)
            expected = attention(
                *inputs,
                kernel=built[0],
                relative=built[1],
                grid=grid,
                is_causal=True,
                backend="dense",
            )
            assert relative_error(decoded.double(), expected.double()) < 0.02, kernel


@pytest.mark.parametrize("relative", ["fourier", "rotary"])
def test_late_positions_are_exact_in_bfloat16(relative: str):
    # bfloat16 cannot represent 257, so positions must not have the dtype of the tokens.
    kernel, built = build_pair("squared_relu", relative)
    inputs = draw_inputs(270, dtype=torch.bfloat16)
    decoded, _ = decode_all(inputs, kernel, built)
    expected = attention(
        *inputs, kernel=kernel, relative=built, grid=Grid(270), is_causal=True, backend="dense"
    )
    assert relative_error(decoded[:, :, 256:].double(), expected[:, :, 256:].double()) < 0.01


@pytest.mark.parametrize("relative", ["fourier", "rotary", "rotation_joint"])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_tokens_can_have_any_positions(relative: str, batch: tuple[int, ...]):
    kernel, built = build_pair("positive", relative, num_axes=2)
    inputs = draw_inputs(11)
    positions = 5 * torch.randn(
        *batch, 11, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    decoded, _ = decode_all(inputs, kernel, built, positions)
    expected = attention(
        *inputs, kernel=kernel, relative=built, positions=positions, is_causal=True, backend="dense"
    )
    assert relative_error(decoded, expected) < 1e-10


def test_kernels_can_be_given_by_name():
    inputs = draw_inputs(9)
    for relative in RELATIVES:
        decoded, _ = decode_all(inputs, "positive", relative)
        grid = None if relative is None else Grid(9)
        expected = attention(
            *inputs,
            kernel="positive",
            relative=relative,
            grid=grid,
            is_causal=True,
            backend="dense",
        )
        assert relative_error(decoded, expected) < 1e-10


def test_tokens_are_one_ring_width_apart():
    _, built = build_pair("squared_relu", "clipped")
    assert isinstance(built, ClippedDistanceBias)
    wide = ClippedDistanceBias(built.distance_embedding, ring_width=2.5)
    inputs = draw_inputs(9)
    decoded, _ = decode_all(inputs, "squared_relu", wide)
    expected = attention(
        *inputs,
        kernel="squared_relu",
        relative=wide,
        grid=Grid(9, spacing=2.5),
        is_causal=True,
        backend="dense",
    )
    assert relative_error(decoded, expected) < 1e-10


def test_growing_keys_give_finite_outputs():
    # Exponents grow from 1 to 10⁵. The state is rescaled to each new largest key.
    query, key, value = (tensor.float() for tensor in draw_inputs(17))
    key = key * torch.logspace(0, 4, 17)[:, None]
    kernel, _ = build_pair("positive", None)
    decoded, states = decode_all([query, key, value], kernel, None)
    assert decoded.isfinite().all()
    assert all(state.sums.values.isfinite().all() for state in states)
    assert (
        relative_error(
            decoded, attention(query, key, value, kernel=kernel, is_causal=True, backend="dense")
        )
        < 1e-4
    )


def test_state_can_be_used_twice():
    kernel, built = build_pair("squared_relu", "clipped")
    inputs = draw_inputs(9)
    first, states = decode_all(inputs, kernel, built)
    query, key, value = (tensor[:, :, 8:] for tensor in inputs)
    again, _ = decode(query, key, value, states[7], kernel=kernel, relative=built)
    assert torch.equal(again, first[:, :, 8:])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kernel": "softmax"}, "kernel must be a kernel with a feature map.*got 'softmax'"),
        ({"kernel": "squard_relu"}, r"kernel must be .*got 'squard_relu'"),
        (
            {"relative": "rotation"},
            "relative must be None, 'alibi'.*got 'rotation'.*Other relative kernels need",
        ),
        ({"relative": "quadratic"}, "relative must be None, 'alibi'.*got 'quadratic'"),
        (
            {"relative": "clipped", "position": torch.zeros(1)},
            "position must be None with 'clipped'.*got a value",
        ),
        (
            {"relative": "rotation_joint"},
            "kernel must be softmax or random features.*got 'squared_relu'",
        ),
    ],
)
def test_unsupported_arguments_are_errors(arguments: dict[str, Any], message: str):
    query, key, value = draw_inputs(1)
    options: dict[str, Any] = {"kernel": "squared_relu", **arguments}
    with pytest.raises(ValueError, match=message):
        decode(query, key, value, None, **options)


@pytest.mark.parametrize(("place", "argument"), [(0, "key"), (1, "key"), (2, "value")])
def test_wrong_shapes_are_errors(place: int, argument: str, unchecked_annotations: None):
    inputs = draw_inputs(1)
    inputs[place] = torch.cat([inputs[place]] * 2, dim=2)
    with pytest.raises(ValueError, match=rf"{argument} must have shape .* [12], .*got"):
        decode(inputs[0], inputs[1], inputs[2], None, kernel="squared_relu")


OTHER_STATES = {
    "another kernel's": (
        {"kernel": "relu"},
        r"state.kernels must be \('squared_relu', 'rotary'\).*got \('relu', None\)",
    ),
    "another relative kernel's": (
        {"relative": "fourier"},
        r"state.kernels must be .*'rotary'.*got .*'fourier'\)",
    ),
    "another denominator's": (
        {"relative": Rotary(torch.ones(3, 2, 1), "nonnegative")},
        r"state.sums.values must be of shape \(2, 3, 5, 4\) and torch.float64.*got '\(2, 3, 8, 4\)",
    ),
    "another batch's": (
        {"batch": 1},
        r"state.sums.values must be of shape \(2, 3, 5, 4\).*got '\(1, 3, 5, 4\)",
    ),
    "another number of heads": ({"heads": 2}, r"state.sums.values must be .*got '\(2, 2, 5, 4\)"),
    "another dtype's": (
        {"dtype": torch.float32},
        r"state.sums.values must be .* torch.float64.*got .* torch.float32",
    ),
    "none": (None, r"state must be None or the DecodingState.*got an object of type tuple"),
}


@pytest.mark.parametrize("state_name", OTHER_STATES)
def test_state_of_another_layer_is_an_error(state_name: str, unchecked_annotations: None):
    changed, message = OTHER_STATES[state_name]
    kernels: dict[str, Any] = {"kernel": "squared_relu", "relative": "rotary"}
    state: Any = ()
    if changed is not None:
        sizes = {name: value for name, value in changed.items() if name not in kernels}
        own = {name: changed.get(name, kernels[name]) for name in kernels}
        own["relative"] = None if own["kernel"] == "relu" else own["relative"]
        query, key, value = draw_inputs(1, **sizes)
        _, state = decode(query, key, value, None, **own)
    query, key, value = draw_inputs(1)
    with pytest.raises(ValueError, match=message):
        decode(query, key, value, state, **kernels)


@pytest.mark.parametrize(
    "position", [torch.zeros(()), torch.zeros(0), torch.zeros(3, 1), torch.zeros(1, 2, 1), [0.0]]
)
def test_wrong_position_is_an_error(position: Any, unchecked_annotations: None):
    query, key, value = draw_inputs(1)
    with pytest.raises(
        ValueError,
        match=r"position must (have shape \(axes,\) or \(2, axes\)|be a tensor.*type list)",
    ):
        decode(query, key, value, None, kernel="squared_relu", relative="rotary", position=position)


def test_scale_multiplies_the_inner_product():
    inputs = draw_inputs(1)
    kernel = PositiveFeatures(
        torch.randn(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    )
    two = [torch.cat([tensor, 2 * tensor], dim=2) for tensor in inputs]
    state, outputs = None, []
    for token in range(2):
        query, key, value = (tensor[:, :, token : token + 1] for tensor in two)
        output, state = decode(query, key, value, state, kernel=kernel, scale=0.3)
        outputs.append(output)
    expected = attention(*two, kernel=kernel, scale=0.3, is_causal=True, backend="dense")
    assert relative_error(torch.cat(outputs, dim=2), expected) < 1e-12
