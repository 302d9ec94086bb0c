import io

import pytest
import torch
from tests.contracts.cases import (
    PAIRS,
    POSSIBLE,
    Case,
    build_kernel,
    build_relative,
    draw_inputs,
    is_signed,
    relative_change,
)
from torch import Tensor, nn

from teka import Grid
from teka.functional import attention
from teka.functional.kernel import RANDOM_KERNELS
from teka.models import Performer
from teka.models.performer import POOLS, POSITIONS
from teka.nn import Attention, RandomFeatures, redraw_projections

GRID = Grid((3, 5))
# Output for the same input against float32, over the largest number (at least 1): only the output is rounded.
HALF_BANDS = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def build_layer(pair: Case, seed: int) -> Attention:
    torch.manual_seed(seed)
    return Attention(8, 2, kernel=pair.kernel, relative=pair.relative).eval()


def saved_and_loaded(model: nn.Module) -> dict[str, Tensor]:
    """The state_dict by way of a file, without unpickling of anything but tensors."""
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_a_layer_survives_its_state_dict_and_redraws_the_same_thereafter(pair: Case):
    source, target = build_layer(pair, seed=1), build_layer(pair, seed=2)
    tokens = torch.randn(2, GRID.num_tokens, 8)
    num_projections = redraw_projections(source)
    expected = (pair.kernel in RANDOM_KERNELS) + (pair.relative == "clipped_features")
    assert num_projections == expected
    for parameter in source.parameters():
        nn.init.normal_(parameter)  # also those that begin at 0
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
@pytest.mark.parametrize("position", POSITIONS)
def test_a_performer_survives_its_state_dict(position: str, pool: str):
    models = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = Performer((6, 4), 2, 3, dim=8, depth=2, heads=2, position=position, kernel="positive", pool=pool)
        models.append(model.eval())
    images = torch.randn(2, 2, 6, 4)
    models[1].load_state_dict(saved_and_loaded(models[0]))
    assert torch.equal(models[0](images), models[1](images))


def test_a_projection_its_seed_and_its_count_of_draws_are_in_the_state():
    features = RandomFeatures("positive", 5, num_features=7)
    assert {name: tuple(tensor.shape) for name, tensor in features.state_dict().items()} == {
        "projection": (7, 5),
        "seed": (),
        "num_draws": (),
    }
    assert features.num_draws == 1
    features.redraw()
    assert features.num_draws == 2


@pytest.mark.parametrize("factor", [1.0, 30.0])
@pytest.mark.parametrize("dtype", HALF_BANDS, ids=str)
@pytest.mark.parametrize("case", POSSIBLE, ids=str)
def test_half_precision_stays_finite_and_near_float32(case: Case, dtype: torch.dtype, factor: float):
    relative = build_relative(case.relative, kernel=case.kernel, heads=3, dim=16, num_axes=2, max_distance=3)
    kernel = build_kernel(case.kernel, relative, 16)
    inputs = [
        (factor * tensor).to(dtype).requires_grad_()
        for tensor in draw_inputs(1 + GRID.num_tokens, dim=16, scale=1.0, dtype=torch.float32)
    ]

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attention(
            query,
            key,
            value,
            kernel=kernel,
            relative=relative,
            grid=GRID,
            backend=case.backend,
            num_prefix_tokens=1,
        )

    output = attend(*inputs)
    assert output.dtype == dtype
    assert torch.isfinite(output).all()
    if not is_signed(case):  # a denominator near 0 may magnify a gradient beyond the range of float16
        gradients = torch.autograd.grad(output.float().mean(), inputs, allow_unused=True)
        assert all(torch.isfinite(gradient).all() for gradient in gradients if gradient is not None)
    if factor == 1.0:
        single = attend(*(tensor.detach().float() for tensor in inputs))
        assert relative_change(output.float(), single) <= HALF_BANDS[dtype]


@pytest.mark.parametrize("dtype", HALF_BANDS, ids=str)
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_a_layer_in_half_precision_or_under_autocast_stays_finite(pair: Case, dtype: torch.dtype):
    tokens = torch.randn(2, GRID.num_tokens, 8)
    layer = build_layer(pair, seed=1)
    with torch.autocast("cpu", dtype=dtype):
        assert torch.isfinite(layer(30 * tokens, GRID)).all()
    output = layer.to(dtype)(30 * tokens.to(dtype), GRID)
    assert output.dtype == dtype
    assert torch.isfinite(output).all()


@pytest.mark.parametrize("case", POSSIBLE, ids=str)
def test_float64_goes_through_in_float64(case: Case):
    # Σ over keys of a value of 1 + 1e-12: float32 anywhere on its way would lose it.
    query, key, _ = draw_inputs(GRID.num_tokens, scale=0.3)
    value = torch.full((2, 3, GRID.num_tokens, 1), 1 + 1e-12, dtype=torch.float64)
    output = attention(query, key, value, kernel=case.kernel, relative=case.relative, grid=GRID, backend=case.backend)
    assert output.dtype == torch.float64
    assert float((output - 1).mean()) == pytest.approx(1e-12, rel=0.01)
