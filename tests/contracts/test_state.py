import copy
import io

import pytest
import torch
from torch import Tensor, nn

from teka import Grid
from teka.functional import attention, decode
from teka.functional.kernels import RANDOM_KERNELS
from teka.models import Performer
from teka.models.performer_config import POOLS, POSITIONS
from teka.nn import Attention, RandomFeatures, redraw_projections
from tests.contracts.cases import (
    DEVICE,
    PAIRS,
    SUPPORTED_CASES,
    Case,
    build_kernel,
    build_relative,
    causal_backends,
    draw_inputs,
    has_features,
    is_signed,
    is_weighted_mean,
    parametrize_by_kernel,
    relative_error,
)

GRID = Grid((3, 5))
# Error relative to float32 for the same input. Only the output is rounded.
HALF_BANDS = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
# A layer rounds after each projection, so that its error is a multiple of that.
LAYER_BAND = 16
NAMED = [case for case in SUPPORTED_CASES if case.backend != "auto"]

STEPPED = (None, "clipped", "clipped_features", "fourier", "rotary", "rotation_joint")
DECODED = [pair for pair in PAIRS if has_features(pair.kernel) and pair.relative in STEPPED]


def build_layer(pair: Case, seed: int) -> Attention:
    torch.manual_seed(seed)
    return Attention(8, 2, kernel=pair.kernel, relative=pair.relative).eval().to(DEVICE)


def saved_and_loaded(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict after saving and loading."""
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@parametrize_by_kernel(PAIRS)
def test_state_dict_restores_a_layer_and_its_redraws(pair: Case):
    source, target = build_layer(pair, seed=1), build_layer(pair, seed=2)
    tokens = torch.randn(2, GRID.num_tokens, 8).to(DEVICE)
    num_projections = redraw_projections(source)
    expected = (pair.kernel in RANDOM_KERNELS) + (pair.relative == "clipped_features")
    assert num_projections == expected
    for parameter in source.parameters():
        nn.init.normal_(parameter)  # also parameters that are initially 0
    assert not torch.equal(source(tokens, GRID), target(tokens, GRID))
    target.load_state_dict(saved_and_loaded(source))
    assert torch.equal(source(tokens, GRID), target(tokens, GRID))
    before = source(tokens, GRID)
    for _ in range(2):
        redraw_projections(source)
        redraw_projections(target)
        assert torch.equal(source(tokens, GRID), target(tokens, GRID))
    if num_projections:
        assert not torch.equal(source(tokens, GRID), before)


@pytest.mark.parametrize("pool", POOLS)
def test_state_dict_restores_a_performer(pool: str):
    images = torch.randn(2, 2, 6, 4).to(DEVICE)
    for position in POSITIONS[POOLS.index(pool) :: len(POOLS)]:
        models = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            model = Performer(
                (6, 4),
                2,
                3,
                dim=8,
                depth=2,
                heads=2,
                position=position,
                kernel="positive",
                pool=pool,
            )
            models.append(model.eval().to(DEVICE))
        models[1].load_state_dict(saved_and_loaded(models[0]))
        assert torch.equal(models[0](images), models[1](images)), position


def test_state_dict_has_projection_seed_and_number_of_draws():
    features = RandomFeatures("positive", 5, num_features=7)
    assert {name: tuple(tensor.shape) for name, tensor in features.state_dict().items()} == {
        "projection": (7, 5),
        "seed": (),
        "num_draws": (),
    }
    assert features.num_draws == 1
    features.redraw()
    assert features.num_draws == 2


def assert_close_if_in_range(output: Tensor, single: Tensor, band: float) -> None:
    """Check that outputs in half precision are close to float32 where they are in its range.

    Only rotary, whose weights do not add up to 1, can exceed the range of float16.
    """
    in_range = single.abs() < torch.finfo(output.dtype).max / 2
    assert torch.isfinite(output[in_range]).all()
    if in_range.any():
        largest = single[in_range].abs().max().clamp_min(1.0)
        assert (output[in_range].float() - single[in_range]).abs().max() <= band * largest


@parametrize_by_kernel(NAMED, dtype=HALF_BANDS, is_causal=[False, True])
def test_half_precision_is_close_to_float32(case: Case, dtype: torch.dtype, is_causal: bool):
    is_causal = is_causal and case.backend in causal_backends(case.kernel, case.relative)
    grid, first = (Grid(11), 0) if is_causal else (GRID, 1)
    relative = build_relative(
        case.relative, kernel=case.kernel, heads=3, dim=16, num_axes=grid.num_axes, max_distance=3
    )
    kernel = build_kernel(case.kernel, relative, 16)

    def attend(inputs: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        output = attention(
            *inputs,
            kernel=kernel,
            relative=relative,
            grid=grid,
            backend=case.backend,
            num_prefix_tokens=first,
            is_causal=is_causal,
        )
        return output, list(
            torch.autograd.grad(output.float().mean(), inputs, materialize_grads=True)
        )

    for factor in (1.0, 30.0):
        drawn = draw_inputs(first + grid.num_tokens, dim=16, scale=1.0, dtype=torch.float32)
        inputs = [(factor * tensor).to(dtype).requires_grad_() for tensor in drawn]
        output, gradients = attend(inputs)
        single, expected = attend([tensor.detach().float().requires_grad_() for tensor in inputs])
        assert output.dtype == dtype
        assert torch.isfinite(single).all()
        assert (
            case.relative == "rotary"
            or not is_weighted_mean(case.kernel)
            or torch.isfinite(output).all()
        )
        assert_close_if_in_range(output, single, HALF_BANDS[dtype])
        if not is_signed(case):  # a denominator near 0 may magnify gradients
            assert all(torch.isfinite(gradient).all() for gradient in gradients)
            for gradient, target in zip(gradients, expected, strict=True):
                # The incoming and the outgoing gradients are rounded.
                assert_close_if_in_range(gradient, target, 2 * HALF_BANDS[dtype])


@parametrize_by_kernel(DECODED, dtype=HALF_BANDS)
def test_decoding_in_half_precision_is_close_to_float32(pair: Case, dtype: torch.dtype):
    relative = build_relative(
        pair.relative, kernel=pair.kernel, heads=3, dim=16, num_axes=1, max_distance=3
    )
    kernel = build_kernel(pair.kernel, relative, 16)
    for factor in (1.0, 30.0):
        inputs = [
            (factor * tensor).to(dtype)
            for tensor in draw_inputs(7, dim=16, scale=1.0, dtype=torch.float32)
        ]
        state = half_state = None
        for token in range(7):
            query, key, value = (tensor[:, :, token : token + 1] for tensor in inputs)
            output, half_state = decode(
                query, key, value, half_state, kernel=kernel, relative=relative
            )
            single, state = decode(
                query.float(), key.float(), value.float(), state, kernel=kernel, relative=relative
            )
            assert output.dtype == dtype
            assert torch.isfinite(single).all()
            assert_close_if_in_range(output, single, HALF_BANDS[dtype])


@parametrize_by_kernel(PAIRS, dtype=HALF_BANDS, causal=[False, True])
def test_half_precision_and_autocast_layers_are_close_to_float32(
    pair: Case, dtype: torch.dtype, causal: bool
):
    grid = Grid(11) if causal else GRID
    torch.manual_seed(1)
    layer = (
        Attention(
            8, 2, kernel=pair.kernel, relative=pair.relative, causal=causal, num_axes=grid.num_axes
        )
        .eval()
        .to(DEVICE)
    )
    half = copy.deepcopy(layer).to(dtype)
    beyond = pair.relative == "rotary" and dtype == torch.float16
    for factor in (1.0, 30.0):
        tokens = factor * torch.randn(2, grid.num_tokens, 8).to(DEVICE)
        single = layer(tokens, grid)
        with torch.autocast(DEVICE, dtype=dtype):
            mixed = layer(tokens, grid)
        cast = half(tokens.to(dtype), grid)
        assert cast.dtype == dtype
        for output, model in ((mixed, layer), (cast, half)):
            if is_signed(pair):
                assert beyond or torch.isfinite(output).all()
                continue
            assert torch.isfinite(output).all()
            gradients = torch.autograd.grad(
                output.float().mean(), list(model.parameters()), allow_unused=True
            )
            assert all(
                torch.isfinite(gradient).all() for gradient in gradients if gradient is not None
            )
            if factor == 1.0 and not causal:
                assert relative_error(output.float(), single) <= LAYER_BAND * HALF_BANDS[dtype]


@parametrize_by_kernel(SUPPORTED_CASES)
def test_float64_inputs_give_float64_outputs(case: Case):
    # A computation in float32 would lose the difference between 1 and 1 + 1e-12.
    query, key, _ = draw_inputs(GRID.num_tokens, scale=0.3)
    outputs = [
        attention(
            query,
            key,
            torch.full((2, 3, GRID.num_tokens, 1), number, dtype=torch.float64, device=DEVICE),
            kernel=case.kernel,
            relative=case.relative,
            grid=GRID,
            backend=case.backend,
        )
        for number in (1.0, 1 + 1e-12)
    ]
    assert outputs[0].dtype == torch.float64
    assert float((outputs[1] / outputs[0] - 1).nanmedian()) == pytest.approx(1e-12, rel=0.01)
